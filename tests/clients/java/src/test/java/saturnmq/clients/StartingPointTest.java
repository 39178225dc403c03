package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Instant;
import java.time.ZoneId;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.junit.jupiter.api.Test;

/**
 * Where a new consumer starts. Broadcast members show the three choices unmixed: for a group of
 * the clustering kind the broker sends the first subscriber of a young topic to its beginning.
 */
class StartingPointTest {
    private static Inbox start(Clients clients, String group, String topic, ConsumeFromWhere where,
        String timestamp, boolean broadcast) throws Exception {
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = clients.push(group);
        if (broadcast) {
            Clients.broadcast(consumer);
        }
        consumer.setConsumeFromWhere(where);
        if (timestamp != null) {
            consumer.setConsumeTimestamp(timestamp);
        }
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(Clients.into(inbox));
        consumer.start();
        return inbox;
    }

    /** The consumer has asked for its offsets once it has a process queue for each queue. */
    private static void assertGets(Inbox inbox, List<String> wanted) throws Exception {
        inbox.await(wanted.size());
        assertEquals(wanted.size(), inbox.size(), "unwanted messages " + inbox.bodies());
        assertEquals(new HashSet<>(wanted), new HashSet<>(inbox.bodies()));
    }

    @Test
    void firstLastAndTimestampStartWhereTheySay() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("start", 1);
            List<String> old = Clients.seed(topic, "t", "old", 10);
            // The consumer's time has whole seconds: take one that is at least a second from
            // the old messages and directly before the new ones.
            long sent = System.currentTimeMillis();
            Instant second = Instant.ofEpochSecond(sent / 1_000 + 3);
            Await.until("a full second", () -> !Instant.now().isBefore(second.plusMillis(5)));
            List<String> recent = Clients.seed(topic, "t", "recent", 10);
            String timestamp = DateTimeFormatter.ofPattern("yyyyMMddHHmmss")
                .withZone(ZoneId.systemDefault()).format(second);

            Inbox first = start(clients, Cluster.unique("start-first"), topic,
                ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, null, true);
            Inbox last = start(clients, Cluster.unique("start-last"), topic,
                ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, null, true);
            Inbox timed = start(clients, Cluster.unique("start-time"), topic,
                ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, timestamp, true);

            List<String> all = new ArrayList<>(old);
            all.addAll(recent);
            assertGets(first, all);
            assertGets(timed, recent);
            // Whatever the last one gets was sent after it had started.
            List<String> sentLater = new ArrayList<>();
            Await.until("a message for the consumer at the end", () -> {
                sentLater.addAll(Clients.seed(topic, "t", "later" + sentLater.size(), 1));
                return last.size() > 0;
            });
            for (String body : last.bodies()) {
                assertEquals(true, body.startsWith("later"), body);
            }
        }
    }

    @Test
    void firstSubscriberOfYoungTopicMissesNothing() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("young", 2);
            List<String> all = Clients.seed(topic, "t", "young", 20);
            Inbox inbox = start(clients, Cluster.unique("young"), topic,
                ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, null, false);
            assertGets(inbox, all);
        }
    }
}
