package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;

/** Lite pull consumers that say themselves where they are. */
class LiteSeekTest {
    private static List<String> poll(DefaultLitePullConsumer consumer, int count) throws Exception {
        List<String> bodies = new ArrayList<>();
        Await.until(count + " messages, got " + bodies, () -> {
            consumer.poll(200).forEach(message -> bodies.add(Inbox.body(message)));
            return bodies.size() >= count;
        });
        return bodies;
    }

    @Test
    void anAssignedQueueIsReadFromWhereverItIsSought() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("sought", 1);
            List<String> sent = Clients.seed(topic, "t", "m", 10);
            Cluster.awaitStored(topic, 10);
            DefaultLitePullConsumer consumer = clients.litePull(Cluster.unique("sought"));
            consumer.setAutoCommit(false);
            consumer.start();
            List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(topic));
            consumer.assign(queues);
            MessageQueue queue = queues.get(0);
            assertEquals(sent, poll(consumer, 10));
            consumer.seekToBegin(queue);
            assertEquals(sent, poll(consumer, 10));
            consumer.seek(queue, 7);
            assertEquals(sent.subList(7, 10), poll(consumer, 3));
            consumer.seekToEnd(queue);
            List<String> end = Clients.seed(topic, "t", "end", 1);
            assertEquals(end, poll(consumer, 1));
            assertThrows(MQClientException.class, () -> consumer.seek(queue, 100));
            assertEquals(0, consumer.offsetForTimestamp(queue, 0L));
            consumer.commitSync();
            Await.until("offset 11", () -> consumer.committed(queue) == 11);
        }
    }

    @Test
    void aPausedQueueGivesNothingUntilItIsResumed() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("paused", 1);
            DefaultLitePullConsumer consumer = clients.litePull(Cluster.unique("paused"));
            consumer.start();
            List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(topic));
            consumer.assign(queues);
            Clients.seed(topic, "t", "before", 1);
            poll(consumer, 1);
            consumer.pause(queues);
            // A pull that is under way may still end.
            List<String> sent = Clients.seed(topic, "t", "meanwhile", 40);
            Cluster.awaitStored(topic, 41);
            int early = consumer.poll(300).size() + consumer.poll(300).size();
            assertTrue(early < 40, early + " messages of a paused queue");
            consumer.resume(queues);
            assertEquals(sent.size() - early, poll(consumer, sent.size() - early).size());
        }
    }

    @Test
    void progressIsCommittedWithoutAsking() throws Exception {
        String topic = Cluster.createTopic("auto-commit", 1);
        String group = Cluster.unique("auto-commit");
        MessageQueue queue = Cluster.queues(topic).get(0);
        Clients.seed(topic, "t", "first", 5);
        try (Clients clients = new Clients()) {
            DefaultLitePullConsumer consumer = clients.litePull(group);
            consumer.setAutoCommitIntervalMillis(1_000);
            consumer.subscribe(topic, "*");
            consumer.start();
            poll(consumer, 5);
            Await.until("progress of " + group, () -> {
                consumer.poll(100);
                // Nothing is committed yet as long as the queue is missing.
                return Cluster.admin().examineConsumeStats(group).getOffsetTable().get(queue)
                    .getConsumerOffset() == 5;
            });
        }
        List<String> more = Clients.seed(topic, "t", "more", 2);
        try (Clients clients = new Clients()) {
            DefaultLitePullConsumer consumer = clients.litePull(group);
            consumer.subscribe(topic, "*");
            consumer.start();
            assertEquals(more, poll(consumer, 2));
        }
    }
}
