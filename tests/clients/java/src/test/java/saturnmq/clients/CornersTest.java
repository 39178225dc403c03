package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static saturnmq.clients.Clients.message;
import static saturnmq.clients.Clients.stored;

import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;

/** What applications come upon at the edges: names, limits and changes that others make. */
class CornersTest {
    private static MessageListenerConcurrently refusing(Inbox inbox) {
        return (messages, context) -> {
            inbox.add(messages);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        };
    }

    @Test
    void aGroupWithALongNameConsumes() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("corner-long", 1);
            String group = Cluster.unique("corner-long");
            group += "x".repeat(130 - group.length());
            Inbox inbox = new Inbox();
            clients.push(group, topic, "*", inbox);
            List<String> sent = Clients.seed(topic, "t", "long", 3);
            inbox.await(3);
            assertEquals(new TreeSet<>(sent), new TreeSet<>(inbox.bodies()));
            Cluster.awaitProgress(group, 0);
        }
    }

    @Test
    void aPullThatWaitsGetsItsMessageWhateverOthersChange() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("corner-waiting", 1);
            String other = Cluster.createTopic("corner-others", 1);
            DefaultMQPullConsumer consumer = clients.pull(Cluster.unique("corner-waiting"), topic);
            MessageQueue queue = Cluster.queues(topic).get(0);
            assertEquals(PullStatus.NO_NEW_MSG,
                consumer.pull(queue, "*", 0, 8).getPullStatus());
            CompletableFuture<PullResult> waiting = CompletableFuture.supplyAsync(() -> {
                try {
                    return consumer.pullBlockIfNotFound(queue, "*", 0, 8);
                } catch (Exception failure) {
                    throw new IllegalStateException(failure);
                }
            });
            Cluster.createNamedTopic(other, 2, 6);
            stored(Cluster.producer().send(message(topic, "t", "wanted")));
            PullResult result = waiting.get(30, TimeUnit.SECONDS);
            assertEquals(PullStatus.FOUND, result.getPullStatus());
            assertEquals("wanted", Inbox.body(result.getMsgFoundList().get(0)));
        }
    }

    @Test
    void aMessageThatMayNotBeRetriedIsDeadAfterTheFirstAttempt() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("corner-once", 1);
            String group = Cluster.unique("corner-once");
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = clients.push(group);
            consumer.setMaxReconsumeTimes(0);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(refusing(inbox));
            consumer.start();
            Clients.seed(topic, "t", "once", 1);
            MessageQueue dead = new MessageQueue("%DLQ%" + group,
                Cluster.queues(topic).get(0).getBrokerName(), 0);
            Await.until("the dead letter", () -> Cluster.admin().maxOffset(dead) == 1);
            assertEquals(1, inbox.size());
        }
    }

    @Test
    void theDeadLettersOfANamespaceStandInIt() throws Exception {
        try (Clients clients = new Clients()) {
            String namespace = Cluster.unique("ns-dead");
            String topic = Cluster.unique("corner-ns");
            String group = Cluster.unique("ns-group");
            Cluster.createNamedTopic(namespace + "%" + topic, 1, 6);
            stored(clients.inNamespace(namespace, "ns-producer").send(message(topic, "t", "bad")));
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = clients.push(group);
            consumer.setNamespace(namespace);
            consumer.setMaxReconsumeTimes(0);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(refusing(inbox));
            consumer.start();
            MessageExt seen = inbox.await(1).get(0);
            // With the namespace in front or without, by the release of the client.
            assertTrue(seen.getTopic().endsWith(topic), seen.getTopic());
            String broker = Cluster.queues(namespace + "%" + topic).get(0).getBrokerName();
            MessageQueue dead =
                new MessageQueue("%DLQ%" + namespace + "%" + group, broker, 0);
            Await.until("the dead letter", () -> Cluster.admin().maxOffset(dead) == 1);
        }
    }

    @Test
    void aMessageThatIsNotThereCannotBeSentBack() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("corner-back", 1);
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer =
                clients.push(Cluster.unique("corner-back"), topic, "*", inbox);
            Clients.seed(topic, "t", "back", 1);
            MessageExt message = inbox.await(1).get(0);
            message.setCommitLogOffset(1L << 40);
            // The client sends a copy of its own then, and tells of nothing.
            consumer.sendMessageBack(message, 1);
            inbox.await(2);
            assertEquals(1, inbox.messages().get(1).getReconsumeTimes());
        }
    }

    @Test
    void aQueueThatATopicLacksTakesNoMessage() throws Exception {
        String topic = Cluster.createTopic("corner-queue", 2);
        String broker = Cluster.queues(topic).get(0).getBrokerName();
        MQBrokerException refused = assertThrows(MQBrokerException.class, () ->
            Cluster.producer().send(message(topic, "t", "x"), new MessageQueue(topic, broker, 7)));
        assertTrue(refused.getErrorMessage().contains("queueId[7] is illegal"),
            refused.getErrorMessage());
        assertEquals(0, Cluster.stored(topic));
    }

    @Test
    void questionsAboutQueuesThatAreEmptyHaveAnswers() throws Exception {
        String topic = Cluster.createTopic("corner-empty", 1);
        MessageQueue queue = Cluster.queues(topic).get(0);
        assertEquals(0, Cluster.admin().maxOffset(queue));
        assertEquals(0, Cluster.admin().minOffset(queue));
        for (long time : new long[] {0, 1, Long.MAX_VALUE}) {
            assertEquals(0, Cluster.admin().searchOffset(queue, time));
        }
        Cluster.admin().examineTopicStats(topic).getOffsetTable().values()
            .forEach(offsets -> assertEquals(0, offsets.getMaxOffset()));
    }
}
