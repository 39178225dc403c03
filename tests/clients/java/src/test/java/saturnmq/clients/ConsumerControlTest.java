package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static saturnmq.clients.Clients.message;
import static saturnmq.clients.Clients.stored;

import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;

/** What an application can change about a push consumer, and a message, while it runs. */
class ConsumerControlTest {
    @Test
    void aSuspendedConsumerGoesOnWhereItStopped() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("suspend", 2);
            String group = Cluster.unique("suspend");
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = clients.push(group, topic, "*", inbox);
            List<String> first = Clients.seed(topic, "t", "before", 10);
            inbox.await(10);
            Cluster.awaitProgress(group, 0);
            consumer.suspend();
            // Pulls that are under way still bring what they wait for: at most one a queue.
            List<String> second = Clients.seed(topic, "t", "meanwhile", 40);
            Cluster.awaitStored(topic, 50);
            assertTrue(inbox.size() < 50, inbox.bodies().toString());
            consumer.resume();
            inbox.await(50);
            Set<String> all = new TreeSet<>(first);
            all.addAll(second);
            assertEquals(all, new TreeSet<>(inbox.bodies()));
            Cluster.awaitProgress(group, 0);
            assertEquals(50, inbox.size());
        }
    }

    @Test
    void aTopicThatGrowsIsConsumedWhole() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("grow", 1);
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique("grow"), topic, "*", inbox);
            Clients.seed(topic, "t", "small", 4);
            inbox.await(4);
            Cluster.createNamedTopic(topic, 4, 6);
            for (MessageQueue queue : Cluster.queues(topic)) {
                stored(Cluster.producer().send(message(topic, "t", "large"), queue));
            }
            inbox.await(8);
            Set<Integer> queues = inbox.messages().stream().map(MessageExt::getQueueId)
                .collect(Collectors.toSet());
            assertEquals(Set.of(0, 1, 2, 3), queues);
            assertEquals(8, inbox.size());
        }
    }

    @Test
    void subscriptionsChangeWhileAConsumerRuns() throws Exception {
        try (Clients clients = new Clients()) {
            String one = Cluster.createTopic("first", 1);
            String two = Cluster.createTopic("second", 1);
            String group = Cluster.unique("changing");
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = clients.push(group, one, "*", inbox);
            Clients.seed(one, "t", "one", 3);
            inbox.await(3);
            consumer.subscribe(two, "wanted");
            stored(Cluster.producer().send(message(two, "other", "unwanted")));
            stored(Cluster.producer().send(message(two, "wanted", "two")));
            inbox.await(4);
            Cluster.awaitProgress(group, 0);
            consumer.unsubscribe(one);
            stored(Cluster.producer().send(message(two, "wanted", "three")));
            inbox.await(5);
            assertEquals(List.of("two", "three"), inbox.bodies().subList(3, 5));
        }
    }

    @Test
    void whatABatchDidNotAcknowledgeComesAgain() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("partial", 1);
            String group = RetryTest.knownGroup("partial", topic);
            Clients.seed(topic, "t", "m", 4);
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = clients.push(group);
            consumer.setConsumeMessageBatchMaxSize(4);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                inbox.add(messages);
                if (messages.get(0).getReconsumeTimes() == 0) {
                    context.setAckIndex(-1);
                    for (MessageExt message : messages) {
                        if (List.of("m-0", "m-1").contains(Inbox.body(message))) {
                            context.setAckIndex(context.getAckIndex() + 1);
                        }
                    }
                    context.setDelayLevelWhenNextConsume(1);
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            List<MessageExt> seen = inbox.await(6);
            assertEquals(Set.of("m-2", "m-3"), seen.stream()
                .filter(message -> message.getReconsumeTimes() == 1).map(Inbox::body)
                .collect(Collectors.toSet()));
            Cluster.awaitProgress(group, 0);
            assertEquals(6, inbox.size());
        }
    }

    @Test
    void aMessageThatMustNotComeAgainIsDeadAtOnce() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("hopeless", 1);
            String group = Cluster.unique("hopeless");
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = clients.push(group);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                inbox.add(messages);
                context.setDelayLevelWhenNextConsume(-1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
            consumer.start();
            stored(Cluster.producer().send(message(topic, "t", "hopeless")));
            MessageExt dead = RetryTest.deadLetter(clients, group);
            assertEquals("hopeless", Inbox.body(dead));
            assertEquals(1, inbox.size());
            assertEquals(topic, dead.getProperty("RETRY_TOPIC"));
        }
    }

    @Test
    void aMessageSentBackByHandComesAfterItsDelay() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("sent-back", 1);
            String group = RetryTest.knownGroup("sent-back", topic);
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = clients.push(group, topic, "*", inbox);
            stored(Cluster.producer().send(message(topic, "t", "again")));
            MessageExt seen = inbox.await(1).get(0);
            long sent = System.currentTimeMillis();
            consumer.sendMessageBack(seen, 1);
            MessageExt again = inbox.await(2).get(1);
            assertTrue(System.currentTimeMillis() - sent >= 950, "too early");
            assertEquals(1, again.getReconsumeTimes());
            assertEquals(topic, again.getTopic());
            assertEquals(seen.getMsgId(), again.getMsgId());
        }
    }
}
