package saturnmq.clients;

import java.util.List;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The brokers under test: where they are, and names that no earlier run has used. */
final class Cluster {
    static final String NAME_SERVER = setting("ROCKETMQ_NAMESRV", "127.0.0.1:9876");
    static final String CLIENT_VERSION = System.getProperty("rocketmq.version", "5.3.3");
    /** Same for the runs before and after a restart of the broker. */
    private static final String RUN =
        setting("CLIENTS_RUN", Long.toString(System.currentTimeMillis(), 36));

    private static DefaultMQAdminExt admin;
    private static DefaultMQProducer producer;

    private Cluster() {
    }

    private static String setting(String name, String fallback) {
        String value = System.getProperty(name, System.getenv(name));
        return value == null || value.isEmpty() ? fallback : value;
    }

    /** A topic or group name that belongs to this run and this client release only. */
    static String unique(String what) {
        return what + "-j" + CLIENT_VERSION.replace(".", "") + "-" + RUN;
    }

    /** The admin connection that all tests share. */
    static synchronized DefaultMQAdminExt admin() throws Exception {
        if (admin == null) {
            DefaultMQAdminExt started = new DefaultMQAdminExt(15_000);
            started.setAdminExtGroup(unique("admin"));
            started.setInstanceName(unique("admin"));
            started.setNamesrvAddr(NAME_SERVER);
            started.start();
            admin = started;
        }
        return admin;
    }

    /** A producer that all tests share for the messages they only need to be there. */
    static synchronized DefaultMQProducer producer() throws Exception {
        if (producer == null) {
            DefaultMQProducer started = new DefaultMQProducer(unique("seed"));
            started.setInstanceName(unique("seed"));
            started.setNamesrvAddr(NAME_SERVER);
            started.setSendMsgTimeout(10_000);
            started.start();
            producer = started;
        }
        return producer;
    }

    /** The address of every master broker. */
    static List<String> brokers() throws Exception {
        // `var`: the type moved to another package between the client releases.
        var cluster = admin().examineBrokerClusterInfo();
        return cluster.getBrokerAddrTable().values().stream()
            .map(broker -> broker.getBrokerAddrs().get(0L))
            .collect(Collectors.toList());
    }

    /** Creates a topic on every broker and returns its name once the name server routes it. */
    static String createTopic(String what, int queues) throws Exception {
        String topic = unique(what);
        createNamedTopic(topic, queues, 6);
        return topic;
    }

    /** Creates or changes a topic of exactly this name and waits for its route. */
    static void createNamedTopic(String topic, int queues, int permission) throws Exception {
        TopicConfig config = new TopicConfig(topic);
        config.setReadQueueNums(queues);
        config.setWriteQueueNums(queues);
        config.setPerm(permission);
        List<String> brokers = brokers();
        for (String broker : brokers) {
            admin().createAndUpdateTopicConfig(broker, config);
        }
        Await.until("route of " + topic, () ->
            queues(topic).size() == queues * brokers.size());
    }

    /** The writable queues of a topic, as the name server knows them now. */
    static List<MessageQueue> queues(String topic) throws Exception {
        return producer().fetchPublishMessageQueues(topic);
    }

    /** How many messages the queues of a topic hold. */
    static long stored(String topic) throws Exception {
        long sum = 0;
        for (MessageQueue queue : queues(topic)) {
            sum += admin().maxOffset(queue) - admin().minOffset(queue);
        }
        return sum;
    }

    /**
     * Waits until a topic holds {@code count} messages, and fails if it holds more. A broker may
     * count a message a moment after it has acknowledged it.
     */
    static void awaitStored(String topic, long count) throws Exception {
        Await.until(count + " messages in " + topic, () -> stored(topic) >= count);
        if (stored(topic) > count) {
            throw new AssertionError(topic + " holds " + stored(topic) + ", not " + count);
        }
    }

    /** Waits until the broker knows that a group has {@code left} messages still to consume. */
    static void awaitProgress(String group, long left) throws Exception {
        Await.until(left + " messages left for " + group, () ->
            admin().examineConsumeStats(group).computeTotalDiff() == left);
    }
}
