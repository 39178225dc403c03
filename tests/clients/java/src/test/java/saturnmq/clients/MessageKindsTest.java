package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static saturnmq.clients.Clients.message;
import static saturnmq.clients.Clients.stored;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;

/** Requests and replies, namespaces, compression, unusual texts, sizes, permissions. */
class MessageKindsTest {
    private static final int MESSAGE_ILLEGAL = 13;
    private static final int NO_PERMISSION = 16;
    private static final int READ_AND_WRITE = 6;

    /** Answers each message with "re: " and its body. */
    private static final class Answering implements MessageListenerConcurrently {
        private final DefaultMQProducer producer;

        Answering(DefaultMQProducer producer) {
            this.producer = producer;
        }

        @Override
        public ConsumeConcurrentlyStatus consumeMessage(
            List<MessageExt> messages, ConsumeConcurrentlyContext context) {
            for (MessageExt asked : messages) {
                if (asked.getProperty(MessageConst.PROPERTY_CORRELATION_ID) == null) {
                    continue;
                }
                String answer = "re: " + Inbox.body(asked);
                try {
                    stored(producer.send(MessageUtil.createReplyMessage(
                        asked, answer.getBytes(StandardCharsets.UTF_8))));
                } catch (Exception failure) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }
    }

    // Release 5.3.3 of the client takes seconds to take a reply and misses some, with Apache's
    // brokers of both releases too: it shows nothing about a broker.
    @EnabledIfSystemProperty(named = "rocketmq.version", matches = "4\\..*")
    @Test
    void eachRequestGetsItsOwnReply() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("request", 2);
            DefaultMQPushConsumer consumer = clients.push(Cluster.unique("request"));
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(
                new Answering(clients.producer(Cluster.unique("replying"))));
            consumer.start();
            String askers = Cluster.unique("asking");
            DefaultMQProducer asking = clients.producer(askers);
            // A reply finds its way to clients that the broker knows, and a heartbeat can be late.
            stored(asking.send(message(topic, "t", "nobody waits for a reply to this one")));
            Await.until("the broker knows " + askers, () -> !Cluster.admin()
                .examineProducerConnectionInfo(askers, topic).getConnectionSet().isEmpty());
            for (int i = 0; i < 5; i++) {
                Message asked = message(topic, "t", "question-" + i);
                byte[] reply = asking.request(asked, 20_000).getBody();
                assertEquals("re: question-" + i, new String(reply, StandardCharsets.UTF_8));
            }
        }
    }

    @Test
    void aRequestThatNobodyAnswersIsStoredAndTimesOut() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("unanswered", 1);
            DefaultMQProducer asking = clients.producer(Cluster.unique("unanswered"));
            assertThrows(RequestTimeoutException.class,
                () -> asking.request(message(topic, "t", "anybody?"), 1_500));
            Cluster.awaitStored(topic, 1);
        }
    }

    @Test
    void topicsAndGroupsOfANamespaceAreTheirOwn() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.unique("spaced");
            Cluster.createNamedTopic("tenant%" + topic, 1, READ_AND_WRITE);
            Cluster.createNamedTopic(topic, 1, READ_AND_WRITE);
            DefaultMQProducer producer = clients.inNamespace("tenant", "spaced-producer");
            stored(producer.send(message(topic, "t", "inside")));
            Clients.seed(topic, "t", "outside", 1);

            DefaultMQPushConsumer consumer = clients.push(Cluster.unique("spaced"));
            consumer.setNamespace("tenant");
            consumer.subscribe(topic, "*");
            Inbox inbox = new Inbox();
            AtomicInteger failures = new AtomicInteger(1);
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                inbox.add(messages);
                return failures.getAndDecrement() > 0
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            // The second time it comes by the group's retry topic.
            List<MessageExt> got = inbox.await(2);
            assertEquals(List.of("inside", "inside"), inbox.bodies());
            assertEquals(topic, got.get(0).getTopic());
            assertEquals(topic, got.get(1).getTopic());
            assertEquals(1, got.get(1).getReconsumeTimes());
            Cluster.awaitStored("tenant%" + topic, 1);
            Cluster.awaitStored(topic, 1);
        }
    }

    @Test
    void bodiesOfEachCompressionComeBackWhole() throws Exception {
        String key = "rocketmq.message.compressType";
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("compressions", 1);
            byte[] body = "to be or not to be ".repeat(3_000).getBytes(StandardCharsets.UTF_8);
            String[] types = {"ZLIB", "LZ4", "ZSTD"};
            for (String type : types) {
                System.setProperty(key, type);
                DefaultMQProducer producer = clients.producer(Cluster.unique("by-" + type));
                stored(producer.send(new Message(topic, type, body)));
            }
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique("compressions"), topic, "*", inbox);
            Map<String, MessageExt> got = new TreeMap<>();
            inbox.await(types.length).forEach(one -> got.put(one.getTags(), one));
            assertEquals(types.length, got.size());
            for (MessageExt one : got.values()) {
                assertArrayEquals(body, one.getBody(), one.getTags());
                assertTrue(one.getStoreSize() < body.length / 4, "stored as it was sent");
            }
        } finally {
            System.clearProperty(key);
        }
    }

    @Test
    void textsOfAllPlanesArriveAndAreFound() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("texts", 1);
            String text = "Saturn \ud83e\ude90 土星 Сатурн زحل \u0000\u0003\ufffd\u2028";
            Message sent = new Message(topic, "标签🏷", "ключ-\ud83d\udd11",
                text.getBytes(StandardCharsets.UTF_8));
            sent.putUserProperty("имя", "\ud83d\ude80 \"quoted\" \\ back {json:[]}");
            stored(Cluster.producer().send(sent));
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique("texts"), topic, "标签🏷 || other", inbox);
            MessageExt got = inbox.await(1).get(0);
            assertEquals(text, Inbox.body(got));
            assertEquals("标签🏷", got.getTags());
            assertEquals("\ud83d\ude80 \"quoted\" \\ back {json:[]}", got.getUserProperty("имя"));
            Await.until("found by its key", () -> {
                List<MessageExt> found = Cluster.admin()
                    .queryMessage(topic, "ключ-\ud83d\udd11", 8, 0, Long.MAX_VALUE)
                    .getMessageList();
                return found.size() == 1 && Inbox.body(found.get(0)).equals(text);
            });
        }
    }

    @Test
    void aBodyOverTheBrokersLimitIsRefusedAndNothingStored() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("too-large", 1);
            DefaultMQProducer producer = clients.producer(Cluster.unique("too-large"));
            producer.setMaxMessageSize(16 << 20);
            producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
            byte[] body = new byte[5 << 20];
            new Random(1).nextBytes(body);
            MQBrokerException refused = assertThrows(MQBrokerException.class,
                () -> producer.send(new Message(topic, "t", body)));
            assertEquals(MESSAGE_ILLEGAL, refused.getResponseCode());
            stored(producer.send(message(topic, "t", "small")));
            Cluster.awaitStored(topic, 1);
        }
    }

    @Test
    void aGroupThatMayNotConsumeIsRefusedUntilItMay() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("forbidden", 1);
            Clients.seed(topic, "t", "m", 1);
            MessageQueue queue = Cluster.queues(topic).get(0);
            String group = Cluster.unique("forbidden");
            DefaultMQPullConsumer consumer = clients.pull(group, topic);
            // The first pull makes the group known.
            assertEquals(PullStatus.FOUND, consumer.pull(queue, "*", 0, 8).getPullStatus());
            mayConsume(group, false);
            MQBrokerException refused = assertThrows(MQBrokerException.class,
                () -> consumer.pull(queue, "*", 0, 8));
            assertEquals(NO_PERMISSION, refused.getResponseCode());
            mayConsume(group, true);
            assertEquals(PullStatus.FOUND, consumer.pull(queue, "*", 0, 8).getPullStatus());
        }
    }

    private static void mayConsume(String group, boolean may) throws Exception {
        for (String address : Cluster.brokers()) {
            // `var`: the type moved to another package between the client releases.
            var config = Cluster.admin().examineSubscriptionGroupConfig(address, group);
            config.setConsumeEnable(may);
            Cluster.admin().createAndUpdateSubscriptionGroupConfig(address, config);
        }
    }

    @Test
    void aQueueChosenByHandTakesTheMessage() throws Exception {
        String topic = Cluster.createTopic("by-hand", 4);
        for (MessageQueue queue : Cluster.queues(topic)) {
            SendResult result = stored(Cluster.producer().send(message(topic, "t", "m"), queue));
            assertEquals(queue, result.getMessageQueue());
            assertEquals(0, result.getQueueOffset());
        }
        Cluster.awaitStored(topic, 4);
    }
}
