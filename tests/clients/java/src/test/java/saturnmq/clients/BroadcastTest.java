package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;

/** Broadcasting members keep their own progress and get no message a second time. */
class BroadcastTest {
    private static DefaultMQPushConsumer member(Clients clients, String group, String instance) {
        DefaultMQPushConsumer member = clients.push(group);
        // The progress is in a file of this name.
        member.setInstanceName(instance);
        member.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        return member;
    }

    @Test
    void aMemberThatComesBackGoesOnFromItsOwnFile() throws Exception {
        String topic = Cluster.createTopic("back", 2);
        String group = Cluster.unique("back");
        String instance = Cluster.unique("back-member");
        Clients.seed(topic, "t", "early", 2);
        Cluster.awaitStored(topic, 2);
        try (Clients clients = new Clients()) {
            DefaultMQPushConsumer first = member(clients, group, instance);
            Clients.broadcast(first);
            Inbox inbox = new Inbox();
            first.subscribe(topic, "*");
            first.registerMessageListener(Clients.into(inbox));
            first.start();
            // It begins at the end as soon as it has taken the queues.
            Await.until("both queues", () -> first.getDefaultMQPushConsumerImpl()
                .getRebalanceImpl().getProcessQueueTable().size() == 2);
            List<String> sent = Clients.seed(topic, "t", "there", 4);
            inbox.await(4);
            assertEquals(new HashSet<>(sent), new HashSet<>(inbox.bodies()));
            // A message is done with only after its listener has returned.
            Await.until("all progress", () -> {
                long sum = 0;
                for (MessageQueue queue : Cluster.queues(topic)) {
                    sum += first.getDefaultMQPushConsumerImpl().getOffsetStore()
                        .readOffset(queue, ReadOffsetType.READ_FROM_MEMORY);
                }
                return sum == 6;
            });
        }
        List<String> missed = Clients.seed(topic, "t", "missed", 4);
        try (Clients clients = new Clients()) {
            DefaultMQPushConsumer again = member(clients, group, instance);
            Clients.broadcast(again);
            Inbox inbox = new Inbox();
            again.subscribe(topic, "*");
            again.registerMessageListener(Clients.into(inbox));
            again.start();
            inbox.await(4);
            assertEquals(new HashSet<>(missed), new HashSet<>(inbox.bodies()));
            assertEquals(4, inbox.size());
        }
    }

    @Test
    void aMessageThatFailsIsNotDeliveredAgain() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("dropped", 1);
            String group = RetryTest.knownGroup("dropped", topic);
            DefaultMQPushConsumer member = clients.push(group);
            Clients.broadcast(member);
            Inbox inbox = new Inbox();
            member.subscribe(topic, "*");
            member.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                inbox.add(messages);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
            member.start();
            Clients.seed(topic, "t", "fails", 3);
            inbox.await(3);
            Clients.seed(topic, "t", "end", 1);
            inbox.await(4);
            assertEquals(List.of(0, 0, 0, 0), inbox.messages().stream()
                .map(message -> message.getReconsumeTimes())
                .collect(java.util.stream.Collectors.toList()));
            assertEquals(0, Cluster.stored("%RETRY%" + group));
        }
    }
}
