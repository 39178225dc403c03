package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;

/** Consumers that ask for messages themselves. */
class PullConsumeTest {
    @Test
    void pullAnswersWithMessagesStatusAndNextOffset() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("pull", 1);
            List<String> sent = Clients.seed(topic, "even", "pull", 40);
            DefaultMQPullConsumer consumer = clients.pull(Cluster.unique("pull"));
            MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
            Cluster.awaitStored(topic, 40);
            assertEquals(0, consumer.minOffset(queue));
            assertEquals(40, consumer.maxOffset(queue));
            Await.until("the last message", () ->
                consumer.pull(queue, "*", 39, 1).getPullStatus() == PullStatus.FOUND);

            PullResult found = consumer.pull(queue, "*", 5, 10);
            assertEquals(PullStatus.FOUND, found.getPullStatus());
            assertEquals(15, found.getNextBeginOffset());
            assertEquals(sent.subList(5, 15), found.getMsgFoundList().stream().map(Inbox::body)
                .collect(Collectors.toList()));

            PullResult end = consumer.pull(queue, "*", 40, 10);
            assertEquals(PullStatus.NO_NEW_MSG, end.getPullStatus());
            assertEquals(40, end.getNextBeginOffset());

            PullResult beyond = consumer.pull(queue, "*", 1_000, 10);
            assertEquals(PullStatus.OFFSET_ILLEGAL, beyond.getPullStatus());
            assertEquals(40, beyond.getMaxOffset());

            PullResult filtered = consumer.pull(queue, "odd", 0, 10);
            assertEquals(PullStatus.NO_MATCHED_MSG, filtered.getPullStatus());
            assertNotEquals(0, filtered.getNextBeginOffset());
        }
    }

    @Test
    void committedOffsetIsReadBack() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("commit", 1);
            Clients.seed(topic, "t", "commit", 10);
            // 5.x refuses offsets of a group until a heartbeat has named it.
            DefaultMQPullConsumer consumer = clients.pull(Cluster.unique("commit"), topic);
            MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
            Await.until("offset accepted", () -> {
                consumer.getDefaultMQPullConsumerImpl()
                    .updateConsumeOffsetToBroker(queue, 7, false);
                return true;
            });
            Await.until("committed offset 7", () -> consumer.fetchConsumeOffset(queue, true) == 7);
        }
    }

    @Test
    void litePullAssignedQueuesCanBeSought() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("assign", 2);
            Clients.seed(topic, "t", "assign", 40);
            DefaultLitePullConsumer consumer = clients.litePull(Cluster.unique("assign"));
            consumer.setAutoCommit(false);
            consumer.start();
            List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(topic));
            assertEquals(2, queues.size());
            consumer.assign(queues);
            for (MessageQueue queue : queues) {
                Await.until("seek in " + queue, () -> {
                    consumer.seek(queue, 15);
                    return true;
                });
            }
            // assign() has begun to pull at the start: what was under way may still come.
            Set<String> got = new HashSet<>();
            Set<String> wanted = new HashSet<>();
            for (MessageQueue queue : queues) {
                for (long offset = 15; offset < 20; offset++) {
                    wanted.add(queue.getQueueId() + "/" + offset);
                }
            }
            Await.until("the last 5 messages of each queue", () -> {
                for (MessageExt message : consumer.poll(200)) {
                    got.add(message.getQueueId() + "/" + message.getQueueOffset());
                }
                return got.containsAll(wanted);
            });
        }
    }

    @Test
    void litePullSubscriptionGetsAllAndContinuesAfterCommit() throws Exception {
        String topic = Cluster.createTopic("lite", 4);
        String group = Cluster.unique("lite");
        Set<String> first = new HashSet<>(Clients.seed(topic, "t", "first", 40));
        assertEquals(first, pollLite(group, topic, 40));
        Set<String> second = new HashSet<>(Clients.seed(topic, "t", "second", 20));
        assertEquals(second, pollLite(group, topic, 20));
    }

    private static Set<String> pollLite(String group, String topic, int count) throws Exception {
        try (Clients clients = new Clients()) {
            DefaultLitePullConsumer consumer = clients.litePull(group);
            consumer.setAutoCommit(false);
            consumer.subscribe(topic, "*");
            consumer.start();
            List<String> got = new ArrayList<>();
            Await.until(count + " messages, got " + got, () -> {
                consumer.poll(200).forEach(message -> got.add(Inbox.body(message)));
                return got.size() >= count;
            });
            assertEquals(count, got.size());
            consumer.commitSync();
            Cluster.awaitProgress(group, 0);
            return new HashSet<>(got);
        }
    }
}
