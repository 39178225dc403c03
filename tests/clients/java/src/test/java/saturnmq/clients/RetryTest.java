package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static saturnmq.clients.Clients.message;
import static saturnmq.clients.Clients.stored;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;

/** Redelivery, dead letters, delay levels. Needs the messageDelayLevel of scripts/test. */
class RetryTest {
    /** Level 1, 2 and 18 of the table; the levels between are one second. */
    private static final Map<Integer, Integer> DELAY_SECONDS = Map.of(1, 1, 2, 2, 18, 3);

    @Test
    void failingMessageIsRetriedThenDeadLettered() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("retry", 1);
            String group = knownGroup("retry", topic);
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = clients.push(group);
            consumer.setMaxReconsumeTimes(2);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                inbox.add(messages);
                boolean poison = Inbox.body(messages.get(0)).startsWith("poison");
                boolean first = messages.get(0).getReconsumeTimes() == 0;
                return poison || first ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            Message poison = message(topic, "t", "poison");
            poison.setKeys("key-of-poison");
            stored(Cluster.producer().send(poison));
            stored(Cluster.producer().send(message(topic, "t", "second time lucky")));
            inbox.await(5, Duration.ofSeconds(60));
            MessageExt dead = deadLetter(clients, group);
            assertEquals("poison", Inbox.body(dead));
            assertEquals("key-of-poison", dead.getKeys());
            assertEquals(5, inbox.size(), inbox.bodies().toString());
            assertEquals(List.of(0, 1, 2), timesOf(inbox, "poison"));
            assertEquals(List.of(0, 1), timesOf(inbox, "second time lucky"));
            for (MessageExt seen : inbox.messages()) {
                assertEquals(topic, seen.getTopic(), "a retry shows the topic it came from");
            }
        }
    }

    /**
     * A group whose retry topic is routed already. A consumer that starts earlier finds it only
     * at one of its 20-second rounds.
     */
    static String knownGroup(String what, String topic) throws Exception {
        String group = Cluster.unique(what);
        try (Clients clients = new Clients()) {
            clients.push(group, topic, "*", new Inbox());
            Await.until("retry topic of " + group, () ->
                !Cluster.queues("%RETRY%" + group).isEmpty());
        }
        return group;
    }

    private static List<Integer> timesOf(Inbox inbox, String body) {
        return inbox.messages().stream().filter(m -> Inbox.body(m).equals(body))
            .map(MessageExt::getReconsumeTimes).collect(java.util.stream.Collectors.toList());
    }

    /** Reads the only dead letter of a group as a user would: made readable first, as 4.x needs. */
    static MessageExt deadLetter(Clients clients, String group) throws Exception {
        String topic = "%DLQ%" + group;
        Await.until("dead letter topic", () -> Cluster.stored(topic) == 1);
        Cluster.createNamedTopic(topic, 1, 6);
        DefaultMQPullConsumer reader = clients.pull(Cluster.unique("dead-letters"));
        MessageQueue queue = reader.fetchSubscribeMessageQueues(topic).iterator().next();
        MessageExt[] found = new MessageExt[1];
        Await.until("dead letter", () -> {
            PullResult result = reader.pull(queue, "*", 0, 32);
            if (result.getPullStatus() == PullStatus.FOUND) {
                assertEquals(1, result.getMsgFoundList().size());
                found[0] = result.getMsgFoundList().get(0);
            }
            return found[0] != null;
        });
        return found[0];
    }

    @Test
    void orderlyRetryHoldsTheQueueUntilTheMessageSucceeds() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("retry-orderly", 1);
            Clients.seed(topic, "t", "m", 3);
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = clients.push(Cluster.unique("retry-orderly"));
            consumer.setConsumeMessageBatchMaxSize(1);
            consumer.setSuspendCurrentQueueTimeMillis(50);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                inbox.add(messages);
                boolean again = Inbox.body(messages.get(0)).equals("m-1") && inbox.size() < 4;
                return again ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
                    : ConsumeOrderlyStatus.SUCCESS;
            });
            consumer.start();
            inbox.await(5, Duration.ofSeconds(60));
            assertEquals(List.of("m-0", "m-1", "m-1", "m-1", "m-2"), inbox.bodies());
        }
    }

    @Test
    void delayedMessagesArriveNotEarlyAndNotMuchLater() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("delay", 2);
            Map<String, Long> arrivals = new ConcurrentHashMap<>();
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = clients.push(Cluster.unique("delay"));
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(m -> arrivals.put(Inbox.body(m), System.currentTimeMillis()));
                inbox.add(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            Map<String, Long> due = new ConcurrentHashMap<>();
            List<Long> latest = new ArrayList<>();
            // Again if a machine that stood still may have delayed them.
            do {
                int round = latest.size();
                for (Map.Entry<Integer, Integer> level : DELAY_SECONDS.entrySet()) {
                    for (int i = 0; i < 5; i++) {
                        String body = "level-" + level.getKey() + "-" + i + "-" + round;
                        Message delayed = message(topic, "t", body);
                        delayed.setDelayTimeLevel(level.getKey());
                        due.put(body, System.currentTimeMillis() + level.getValue() * 1_000L);
                        stored(Cluster.producer().send(delayed));
                    }
                }
                inbox.await(15 * (round + 1));
                assertEquals(due.keySet(), arrivals.keySet());
                long late = 0;
                for (Map.Entry<String, Long> message : due.entrySet()) {
                    long by = arrivals.get(message.getKey()) - message.getValue();
                    assertTrue(by >= 0, message.getKey() + " was " + -by + " ms early");
                    if (message.getKey().endsWith("-" + round)) {
                        late = Math.max(late, by);
                    }
                }
                latest.add(late);
            } while (latest.get(latest.size() - 1) >= 5_000 && latest.size() < 4);
            long least = Collections.min(latest);
            assertTrue(least < 5_000, "the latest were " + latest + " ms late");
        }
    }
}
