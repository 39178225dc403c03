package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static saturnmq.clients.Clients.message;
import static saturnmq.clients.Clients.stored;

import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Test;

/** The largest that is taken, and one more. */
class LimitsTest {
    private static final int BODY_MAX = 4 << 20;
    private static final int PROPERTIES_MAX = 32_767;
    private static final int MESSAGE_ILLEGAL = 13;

    private static byte[] noise(int length) {
        byte[] noise = new byte[length];
        new Random(length).nextBytes(noise);
        return noise;
    }

    @Test
    void aBodyOfFourMebibytesArrivesAndOneByteMoreDoesNot() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("body-max", 1);
            DefaultMQProducer producer = clients.producer(Cluster.unique("body-max"));
            producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
            producer.setMaxMessageSize(2 * BODY_MAX);
            stored(producer.send(new Message(topic, noise(BODY_MAX))));
            MQBrokerException refused = assertThrows(MQBrokerException.class,
                () -> producer.send(new Message(topic, noise(BODY_MAX + 1))));
            assertEquals(MESSAGE_ILLEGAL, refused.getResponseCode());
            stored(producer.send(new Message(topic, noise(BODY_MAX - 1))));
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique("body-max"), topic, "*", inbox);
            for (MessageExt message : inbox.await(2)) {
                assertArrayEquals(noise(message.getBody().length), message.getBody());
            }
            assertEquals(Set.of(BODY_MAX, BODY_MAX - 1), inbox.messages().stream()
                .map(message -> message.getBody().length).collect(Collectors.toSet()));
        }
    }

    @Test
    void propertiesUpToTheirLimitArriveAndMoreAreRefused() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("properties-max", 1);
            DefaultMQProducer producer = clients.producer(Cluster.unique("properties-max"));
            List<Integer> lengths = List.of(32_000, 32_500);
            for (int length : lengths) {
                Message message = message(topic, "t", Integer.toString(length));
                message.putUserProperty("long", "v".repeat(length));
                stored(producer.send(message));
            }
            Message over = message(topic, "t", "over");
            over.putUserProperty("long", "土".repeat(PROPERTIES_MAX / 3 + 1));
            MQBrokerException refused = assertThrows(MQBrokerException.class,
                () -> producer.send(over));
            assertEquals(MESSAGE_ILLEGAL, refused.getResponseCode());
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique("properties-max"), topic, "*", inbox);
            for (MessageExt message : inbox.await(2)) {
                assertEquals(Inbox.body(message),
                    Integer.toString(message.getUserProperty("long").length()));
            }
            assertEquals(2, inbox.size());
        }
    }

    @Test
    void theLongestTopicNameWorks() throws Exception {
        String start = Cluster.unique("longest");
        String topic = start + "x".repeat(127 - start.length());
        Cluster.createNamedTopic(topic, 1, 6);
        try (Clients clients = new Clients()) {
            Clients.seed(topic, "t", "long", 2);
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique("longest"), topic, "*", inbox);
            inbox.await(2);
        }
    }

    @Test
    void aBatchOverTheLimitIsRefusedWhole() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("batch-max", 1);
            DefaultMQProducer producer = clients.producer(Cluster.unique("batch-max"));
            producer.setMaxMessageSize(2 * BODY_MAX);
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < 5; i++) {
                batch.add(new Message(topic, noise(900_000)));
            }
            // 5.x answers 1 where 4.9 answers 13.
            assertThrows(Exception.class, () -> producer.send(batch));
            stored(producer.send(batch.subList(0, 4)));
            Cluster.awaitStored(topic, 4);
        }
    }

    @Test
    void pullsEndAtThirtyTwoMessagesOr256Kibibytes() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("pull-max", 1);
            var queue = Cluster.queues(topic).get(0);
            Clients.seed(topic, "t", "small", 40);
            for (int i = 0; i < 6; i++) {
                stored(Cluster.producer().send(new Message(topic, noise(100_000))));
            }
            Cluster.awaitStored(topic, 46);
            var pull = clients.pull(Cluster.unique("pull-max"));
            Set<Integer> counts = new TreeSet<>();
            for (int wanted : new int[] {1, 31, 32, 33, 1024}) {
                counts.add(pull.pull(queue, "*", 0, wanted).getMsgFoundList().size());
            }
            assertEquals(Set.of(1, 31, 32), counts);
            int large = pull.pull(queue, "*", 40, 32).getMsgFoundList().size();
            assertTrue(large == 2 || large == 3, large + " of 100,000 bytes");
        }
    }
}
