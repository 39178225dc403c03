package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static saturnmq.clients.Clients.message;
import static saturnmq.clients.Clients.stored;

import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;

/** What the permission of a topic and the numbers of its queues do to clients that run. */
class PermissionTest {
    private static final int WRITE = 2;
    private static final int READ = 4;
    private static final int NO_PERMISSION = 16;
    private static final int NO_ROUTE = 10005;

    /** A topic with other numbers of queues to read and to write. */
    private static void set(String topic, int read, int write, int permission) throws Exception {
        TopicConfig config = new TopicConfig(topic);
        config.setReadQueueNums(read);
        config.setWriteQueueNums(write);
        config.setPerm(permission);
        for (String broker : Cluster.brokers()) {
            Cluster.admin().createAndUpdateTopicConfig(broker, config);
        }
        Await.until("route of " + topic, () -> {
            var known = Cluster.admin().examineTopicRouteInfo(topic).getQueueDatas().get(0);
            return known.getReadQueueNums() == read && known.getWriteQueueNums() == write
                && known.getPerm() == permission;
        });
    }

    @Test
    void aConsumerThatWaitsGetsNothingOfATopicThatBecameWriteOnly() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("write-only", 1);
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique("write-only"), topic, "*", inbox);
            Clients.seed(topic, "t", "before", 2);
            inbox.await(2);
            set(topic, 1, 1, WRITE);
            List<String> kept = Clients.seed(topic, "t", "kept", 2);
            DefaultMQPullConsumer pull = clients.pull(Cluster.unique("write-only-pull"));
            MQBrokerException refused = assertThrows(MQBrokerException.class,
                () -> pull.pull(Cluster.queues(topic).get(0), "*", 0, 8));
            assertEquals(NO_PERMISSION, refused.getResponseCode());
            assertEquals(2, inbox.size(), inbox.bodies().toString());
            set(topic, 1, 1, READ | WRITE);
            inbox.await(4);
            assertEquals(new TreeSet<>(kept), new TreeSet<>(inbox.bodies().subList(2, 4)));
        }
    }

    @Test
    void producersFindNoQueueOfAReadOnlyTopicAndConsumersDo() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("read-only", 2);
            List<String> sent = Clients.seed(topic, "t", "before", 4);
            set(topic, 2, 2, READ);
            DefaultMQProducer producer = clients.producer(Cluster.unique("read-only"));
            MQClientException refused = assertThrows(MQClientException.class,
                () -> producer.send(message(topic, "t", "too late")));
            assertEquals(NO_ROUTE, refused.getResponseCode());
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique("read-only"), topic, "*", inbox);
            inbox.await(4);
            assertEquals(new TreeSet<>(sent), new TreeSet<>(inbox.bodies()));
        }
    }

    @Test
    void queuesThatAreClosedForWritingAreReadToTheirEnd() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("shrinking", 4);
            for (MessageQueue queue : Cluster.queues(topic)) {
                stored(Cluster.producer().send(message(topic, "t", "all"), queue));
            }
            // As queues are taken away: first nobody may write to them, later nobody reads them.
            set(topic, 4, 2, READ | WRITE);
            DefaultMQProducer producer = clients.producer(Cluster.unique("shrinking"));
            assertEquals(2, producer.fetchPublishMessageQueues(topic).size());
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique("shrinking"), topic, "*", inbox);
            inbox.await(4);
            set(topic, 2, 2, READ | WRITE);
            MessageQueue gone = new MessageQueue(topic,
                Cluster.queues(topic).get(0).getBrokerName(), 3);
            assertThrows(MQBrokerException.class,
                () -> producer.send(message(topic, "t", "no such queue"), gone));
            assertThrows(MQBrokerException.class,
                () -> clients.pull(Cluster.unique("shrinking-pull")).pull(gone, "*", 0, 8));
            set(topic, 4, 4, READ | WRITE);
            assertEquals(1, Cluster.admin().maxOffset(gone), "what it held is still there");
        }
    }

    @Test
    void aGroupInUnitModeMarksItsTopics() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.unique("unit");
            DefaultMQProducer producer =
                clients.configured(new DefaultMQProducer(Cluster.unique("unit")));
            producer.setUnitMode(true);
            producer.setUnitName("one");
            producer.start();
            try {
                stored(producer.send(message(topic, "t", "made by this")));
            } finally {
                producer.shutdown();
            }
            var consumer = clients.push(Cluster.unique("unit"));
            consumer.setUnitMode(true);
            consumer.setUnitName("one");
            Inbox inbox = new Inbox();
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(Clients.into(inbox));
            consumer.start();
            inbox.await(1);
            assertEquals(Set.of(1), flags(topic));
            assertEquals(Set.of(2), flags("%RETRY%" + Cluster.unique("unit")));
        }
    }

    private static Set<Integer> flags(String topic) throws Exception {
        Set<Integer> flags = new TreeSet<>();
        Await.until("route of " + topic, () -> {
            Cluster.admin().examineTopicRouteInfo(topic).getQueueDatas()
                .forEach(queues -> flags.add(queues.getTopicSysFlag()));
            return !flags.isEmpty();
        });
        return flags;
    }
}
