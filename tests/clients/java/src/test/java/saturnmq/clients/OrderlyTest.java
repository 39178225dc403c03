package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;

/** Orderly consumption: its limits, its commits by hand, and members that come and go. */
class OrderlyTest {
    @Test
    void aMessageThatFailsTooOftenIsDeadAndTheQueueGoesOn() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("orderly-dead", 1);
            String group = Cluster.unique("orderly-dead");
            Clients.seed(topic, "t", "m", 3);
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = clients.push(group);
            consumer.setMaxReconsumeTimes(2);
            consumer.setSuspendCurrentQueueTimeMillis(50);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                inbox.add(messages);
                return Inbox.body(messages.get(0)).equals("m-1")
                    ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
                    : ConsumeOrderlyStatus.SUCCESS;
            });
            consumer.start();
            inbox.await(5);
            MessageExt dead = RetryTest.deadLetter(clients, group);
            assertEquals("m-1", Inbox.body(dead));
            assertEquals(topic, dead.getProperty("RETRY_TOPIC"));
            assertEquals(List.of("m-0/0", "m-1/0", "m-1/1", "m-1/2", "m-2/0"),
                seen(inbox));
        }
    }

    /** Bodies with how often the message came before, as it was when it was consumed. */
    private static List<String> seen(Inbox inbox) {
        Map<String, Integer> times = new TreeMap<>();
        List<String> all = new ArrayList<>();
        for (String body : inbox.bodies()) {
            all.add(body + "/" + (times.merge(body, 1, Integer::sum) - 1));
        }
        return all;
    }

    @Test
    @SuppressWarnings("deprecation")
    void whatIsRolledBackComesAgainAndWhatIsCommittedDoesNot() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("orderly-commit", 1);
            String group = Cluster.unique("orderly-commit");
            Clients.seed(topic, "t", "m", 3);
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = clients.push(group);
            consumer.setSuspendCurrentQueueTimeMillis(50);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                context.setAutoCommit(false);
                inbox.add(messages);
                switch (inbox.size()) {
                    case 2:
                        return ConsumeOrderlyStatus.ROLLBACK;
                    case 5:
                        return ConsumeOrderlyStatus.COMMIT;
                    default:
                        return ConsumeOrderlyStatus.SUCCESS;
                }
            });
            consumer.start();
            inbox.await(5);
            assertEquals(List.of("m-0", "m-1", "m-0", "m-1", "m-2"), inbox.bodies());
            Cluster.awaitProgress(group, 0);
        }
    }

    @Test
    void theLocksOfAMemberThatLeavesGoToTheOthersAtOnce() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("heirs", 4);
            String group = Cluster.unique("heirs");
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer leaving = member(clients, group, topic, inbox);
            Await.until("all queues", () -> owned(leaving, topic) == 4);
            DefaultMQPushConsumer staying = member(clients, group, topic, inbox);
            Await.until("half of the queues each", () ->
                owned(leaving, topic) == 2 && owned(staying, topic) == 2);
            send(topic, "both", 8);
            inbox.await(8);
            // A message is done with only after its listener has returned.
            Await.until("the progress of the one that leaves", () -> progress(leaving, topic) == 4);
            leaving.shutdown();
            Await.until("all queues again", () -> owned(staying, topic) == 4);
            send(topic, "heir", 8);
            inbox.await(16);
            assertEquals(16, inbox.size());
            Map<Integer, List<Long>> offsets = inbox.messages().stream()
                .collect(Collectors.groupingBy(MessageExt::getQueueId,
                    Collectors.mapping(MessageExt::getQueueOffset, Collectors.toList())));
            offsets.forEach((queue, order) ->
                assertEquals(List.of(0L, 1L, 2L, 3L), order, "queue " + queue));
            assertTrue(offsets.size() == 4, offsets.toString());
        }
    }

    private static void send(String topic, String prefix, int count) throws Exception {
        List<MessageQueue> queues = Cluster.queues(topic);
        for (int i = 0; i < count; i++) {
            Clients.stored(Cluster.producer().send(
                Clients.message(topic, "t", prefix + i), queues.get(i % queues.size())));
        }
    }

    private static long owned(DefaultMQPushConsumer member, String topic) {
        return member.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable()
            .keySet().stream().filter(queue -> queue.getTopic().equals(topic)).count();
    }

    private static long progress(DefaultMQPushConsumer member, String topic) {
        return member.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable()
            .keySet().stream().filter(queue -> queue.getTopic().equals(topic))
            .mapToLong(queue -> member.getDefaultMQPushConsumerImpl().getOffsetStore()
                .readOffset(queue, ReadOffsetType.READ_FROM_MEMORY)).sum();
    }

    private static DefaultMQPushConsumer member(Clients clients, String group, String topic,
        Inbox inbox) throws Exception {
        DefaultMQPushConsumer member = clients.push(group);
        member.subscribe(topic, "*");
        member.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            inbox.add(messages);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        member.start();
        return member;
    }
}
