package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.junit.jupiter.api.Test;

/** Members of a group share the queues, and learn from the broker when that changes. */
class RebalanceTest {
    /** Below the client's own 20 s round: only the broker's notice makes it this quick. */
    private static final Duration NOTICED = Duration.ofSeconds(12);
    private static final int QUEUES = 8;

    /** The queues a member owns, for one topic. */
    private static Set<Integer> owned(DefaultMQPushConsumer member, String topic) {
        return member.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable()
            .keySet().stream().filter(queue -> queue.getTopic().equals(topic))
            .map(queue -> queue.getQueueId()).collect(Collectors.toSet());
    }

    @Test
    void queuesMoveWhenMembersComeAndGoAndNothingIsLost() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("rebalance", QUEUES);
            String group = Cluster.unique("rebalance");
            Inbox stays = new Inbox();
            Inbox leaves = new Inbox();
            DefaultMQPushConsumer staying = clients.push(group, topic, "*", stays);
            Await.until("one member owns all", () -> owned(staying, topic).size() == QUEUES);
            DefaultMQPushConsumer leaving = clients.push(group, topic, "*", leaves);
            Await.until("two members own half each", NOTICED, () ->
                owned(staying, topic).size() == QUEUES / 2
                    && owned(leaving, topic).size() == QUEUES / 2);
            Set<Integer> both = new HashSet<>(owned(staying, topic));
            both.addAll(owned(leaving, topic));
            assertEquals(QUEUES, both.size(), "a queue has two owners");

            Set<String> wanted = new HashSet<>(Clients.seed(topic, "t", "shared", 80));
            Await.until("80 messages", () -> stays.size() + leaves.size() >= 80);
            assertTrue(stays.size() > 0 && leaves.size() > 0, "one member got everything");

            leaving.shutdown();
            Await.until("the last member owns all", NOTICED, () ->
                owned(staying, topic).size() == QUEUES);
            List<String> alone = Clients.seed(topic, "t", "alone", 80);
            wanted.addAll(alone);
            Set<String> got = new HashSet<>();
            Await.until("everything consumed", () -> {
                got.addAll(stays.bodies());
                got.addAll(leaves.bodies());
                return got.containsAll(wanted);
            });
            assertEquals(wanted, got);
            assertEquals(160, stays.size() + leaves.size(), "redelivered after an orderly leave");
        }
    }
}
