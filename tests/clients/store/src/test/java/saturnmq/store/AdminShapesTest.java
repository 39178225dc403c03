package saturnmq.store;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** What the commands of mqadmin 4.9.7 print about SaturnMQ has the shape of Apache's. */
class AdminShapesTest {
    private static final String TOPIC = "Shapes";
    private static final String GROUP = "shapes";
    /** Names of a server's own, in braces, stand for its addresses and ids. */
    private static final String[] COMMANDS = {
        "topicList", "topicList -c", "topicClusterList -t Shapes", "topicRoute -t Shapes",
        "topicStatus -t Shapes", "statsAll -t Shapes",
        "clusterList", "clusterList -m", "allocateMQ -t Shapes -i 1.1.1.1,2.2.2.2",
        "brokerStatus -b {broker}", "brokerStatus -c {cluster}",
        "brokerConsumeStats -b {broker}", "getBrokerConfig -b {broker}",
        "getBrokerConfig -c {cluster}", "getNamesrvConfig",
        "producer -b {broker}", "producerConnection -g shapes-producer -t Shapes",
        "consumerConnection -g shapes", "consumerConnection -g nobody",
        "consumerProgress", "consumerProgress -g shapes", "consumerProgress -g nobody",
        "consumerStatus -g shapes -i {client}",
        "getConsumerConfig -g shapes",
        "queryMsgById -i {id}", "queryMsgById -i {id} -g shapes -d {client}",
        "queryMsgById -i 00000000000000000000000000000000",
        "queryMsgByKey -t Shapes -k one", "queryMsgByKey -t Shapes -k nothing",
        "queryMsgByUniqueKey -t Shapes -i {unique}",
        "queryMsgByUniqueKey -t Shapes -i {unique} -g shapes -d {client}",
        "queryMsgByOffset -t Shapes -b {name} -i 0 -o 0", "queryMsgTraceById -i {unique}",
        "queryCq -t Shapes -q 0 -i 0 -c 2", "queryCq -t Shapes -q 0 -i 0 -c 2 -g shapes",
        "queryCq -t Shapes -q 7 -i 0 -c 2",
        "printMsg -t Shapes", "printMsgByQueue -t Shapes -a {name} -i 0 -p true -d true",
        "sendMessage -t Shapes -p hello", "sendMessage -t Shapes -p hello -k k -c tag",
        "sendMessage -t Shapes -p hello -b {name} -i 0", "consumeMessage -t Shapes -c 2",
        "checkMsgSendRT -t Shapes -a 2 -s 10", "sendMsgStatus -b {name} -s 10 -c 2",
        "updateTopic -b {broker} -t Made -r 3 -w 5", "updateTopic -c {cluster} -t Made2",
        "updateTopic -b {broker} -t Made -r 4 -w 5 -o true -u true -s false",
        "updateTopic -b {broker} -t TBW102", "updateTopic -b {broker} -t b@d",
        "updateTopicPerm -b {broker} -t Made -p 4", "updateTopicPerm -c {cluster} -t Made -p 6",
        "updateTopicPerm -b {broker} -t Missing -p 6", "topicStatus -t Missing",
        "topicRoute -t Missing", "updateOrderConf -t Made -m put -v {name}:4",
        "updateOrderConf -t Made -m get", "updateOrderConf -t Made -m delete",
        "deleteTopic -c {cluster} -t Made", "deleteTopic -c {cluster} -t Missing",
        "updateSubGroup -b {broker} -g made", "updateSubGroup -c {cluster} -g made -s false -d true",
        "getConsumerConfig -g made", "deleteSubGroup -b {broker} -g made",
        "deleteSubGroup -c {cluster} -g missing -r true",
        "updateBrokerConfig -b {broker} -k waitTimeMillsInSendQueue -v 300",
        "updateBrokerConfig -c {cluster} -k autoCreateTopicEnable -v true",
        "updateBrokerConfig -b {broker} -k nothing -v 1",
        "updateNamesrvConfig -k orderMessageEnable -v true",
        "updateKvConfig -s shapes -k k -v v", "deleteKvConfig -s shapes -k k",
        "wipeWritePerm -b {name}", "addWritePerm -b {name}", "wipeWritePerm -b nobody",
        "resetOffsetByTime -g shapes -t Shapes -s -1 -f true",
        "resetOffsetByTime -g nobody -t Shapes -s now -f true",
        "skipAccumulatedMessage -g shapes -t Shapes -f true",
        "cloneGroupOffset -s shapes -d shapes2 -t Shapes",
        "cleanExpiredCQ -b {broker}", "cleanExpiredCQ -c {cluster}", "cleanUnusedTopic -b {broker}",
        "cleanUnusedTopic -c {cluster}", "deleteExpiredCommitLog -b {broker}",
        "deleteExpiredCommitLog -c {cluster}", "exportMetadata -c {cluster} -f {dir}",
        "exportConfigs -c {cluster} -f {dir}", "exportMetrics -c {cluster} -f {dir}",
    };

    /** Values are each broker's own, and SaturnMQ knows the keys of 5.x as well. */
    private static final Set<String> KEYS_ONLY = Set.of("brokerStatus", "getBrokerConfig");
    /** Where SaturnMQ differs on purpose. */
    private static final Set<String> DIFFERENT = Set.of(
        // It has no such settings.
        "getNamesrvConfig", "updateNamesrvConfig -k orderMessageEnable -v true",
        // Apache takes any key.
        "updateBrokerConfig -b {broker} -k nothing -v 1",
        // The broker resets, as 5.x does, and says so in its words.
        "resetOffsetByTime -g nobody -t Shapes -s now -f true",
        // Apache says of entries that pass the filter that they do not.
        "queryCq -t Shapes -q 0 -i 0 -c 2 -g shapes");

    /** Topics that a broker makes for itself, sooner or later. */
    private static final Pattern OWN_TOPICS = Pattern.compile("%RETRY%|(?i:rmq_sys_)");

    private static Path work;

    @BeforeAll
    static void directory() throws Exception {
        work = Files.createTempDirectory("shapes");
    }

    @AfterAll
    static void remove() throws Exception {
        Stores.delete(work);
    }

    /** A server with a producer and a consumer of one topic with two messages. */
    private static final class Visited implements AutoCloseable {
        private final Server server;
        private final DefaultMQProducer producer;
        private final DefaultMQPushConsumer consumer;
        private final Map<String, String> own = new TreeMap<>();

        Visited(Server server, Path dir) throws Exception {
            this.server = server;
            Load load = new Load(server, new Ledger());
            try (Wire wire = new Wire(server)) {
                int code = wire.ask(Wire.UPDATE_TOPIC, "topic", TOPIC, "defaultTopic", "TBW102",
                    "readQueueNums", 1, "writeQueueNums", 1, "perm", 6, "topicFilterType",
                    "SINGLE_TAG", "topicSysFlag", 0, "order", false).getCode();
                assertEquals(0, code);
            }
            producer = load.configured(new DefaultMQProducer("shapes-producer"));
            producer.start();
            Await.until("a route", () -> producer.fetchPublishMessageQueues(TOPIC).size() == 1);
            SendResult one = producer.send(new Message(TOPIC, "tag", "one", new byte[] {65}));
            producer.send(new Message(TOPIC, "tag", "two", new byte[] {66}));
            List<String> got = new ArrayList<>();
            consumer = load.configured(new DefaultMQPushConsumer(GROUP));
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(TOPIC, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                synchronized (got) {
                    messages.forEach(message -> got.add(message.getMsgId()));
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            Await.until("two messages", () -> {
                synchronized (got) {
                    return got.size() >= 2;
                }
            });
            try (Wire wire = new Wire(server)) {
                Await.until("progress", () -> {
                    consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
                    return Load.left(wire, GROUP, TOPIC) == 0;
                });
                // The broker has heard of both clients, and tells of itself: Apache's answers
                // 28 with an error in the first seconds of its life.
                Await.until("a registered producer", () -> wire.ask(Wire.PRODUCERS_OF,
                    "producerGroup", "shapes-producer").getCode() == 0);
                Await.until("a registered consumer", () -> wire.ask(Wire.CONSUMERS_OF,
                    "consumerGroup", GROUP).getCode() == 0);
                Await.until("runtime information",
                    () -> wire.ask(Wire.RUNTIME_INFORMATION).getCode() == 0);
            }
            String client = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory()
                .getClientId();
            own.put("{client}", client);
            own.put("{broker}", server.address());
            own.put("{names}", server.nameServer());
            own.put("{name}", Settings.BROKER_NAME);
            own.put("{cluster}", "DefaultCluster");
            own.put("{id}", one.getOffsetMsgId());
            own.put("{unique}", one.getMsgId());
            own.put("{dir}", dir.toString());
        }

        List<String> printed(String command) throws Exception {
            String filled = command;
            for (Map.Entry<String, String> entry : own.entrySet()) {
                filled = filled.replace(entry.getKey(), entry.getValue());
            }
            String[] words = filled.split(" ");
            String text = MqAdmin.run(server, words[0], Arrays.copyOfRange(words, 1, words.length));
            for (String name : new String[] {"{client}", "{broker}", "{names}", "{id}", "{unique}",
                "{dir}"}) {
                text = text.replace(own.get(name), name);
            }
            return text.lines().map(AdminShapesTest::shape)
                .filter(line -> !line.isEmpty() && !OWN_TOPICS.matcher(line).find())
                .map(line -> KEYS_ONLY.contains(words[0]) ? line.split("[:=]")[0].trim() : line)
                .sorted().collect(Collectors.toList());
        }

        @Override
        public void close() {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    /** Numbers, times and ids by their kind, spaces one by one. */
    private static String shape(String line) {
        return line.replaceAll("@[0-9a-f]+\\b", "@N").replaceAll("Lambda\\S+", "LAMBDA")
            .replaceAll("20\\d\\d-\\d\\d-\\d\\d[ #]\\d\\d:\\d\\d:\\d\\d(,\\d+)?", "TIME")
            .replaceAll("\\b[0-9A-F]{32,}\\b", "ID").replaceAll("127\\.0\\.0\\.1(:\\d+)?", "HOST")
            .replaceAll("-?\\d+(\\.\\d+)?(E-?\\d+)?", "N").replaceAll("\\s+", " ").trim();
    }

    /** Not here: one loops for ever, one is a daemon, those of ACL are not supported yet. */
    private static final Set<String> LEFT_OUT = Set.of("clusterRT", "startMonitoring",
        "updateAclConfig", "deleteAclConfig", "clusterAclConfigVersion", "updateGlobalWhiteAddr",
        "getAclConfig");

    @Test
    void noCommandIsForgotten() throws Exception {
        Assumptions.assumeTrue(Apache.RELEASE.startsWith("4."));
        Set<String> tried = Arrays.stream(COMMANDS).map(command -> command.split(" ")[0])
            .collect(Collectors.toCollection(TreeSet::new));
        tried.addAll(LEFT_OUT);
        assertEquals(tried, MqAdmin.names());
    }

    @Test
    void everyCommandPrintsWhatItPrintsAboutApache() throws Exception {
        Assumptions.assumeTrue(Apache.RELEASE.startsWith("4."));
        Map<String, String> different = new TreeMap<>();
        Path our = Files.createDirectories(work.resolve("ours"));
        Path their = Files.createDirectories(work.resolve("theirs"));
        try (Saturn saturn = Saturn.start(our.resolve("store"));
            Apache apache = Apache.start(their.resolve("store"));
            Visited ours = new Visited(saturn, our); Visited theirs = new Visited(apache, their)) {
            for (String command : COMMANDS) {
                List<String> expected = theirs.printed(command);
                List<String> found = ours.printed(command);
                List<String> missing = new ArrayList<>(expected);
                found.forEach(missing::remove);
                List<String> more = new ArrayList<>(found);
                expected.forEach(more::remove);
                boolean same = missing.isEmpty()
                    && (more.isEmpty() || KEYS_ONLY.contains(command.split(" ")[0]));
                if (same == DIFFERENT.contains(command)) {
                    different.put(command, "\n  missing " + missing + "\n  more " + more);
                }
            }
        }
        assertEquals("{}", different.toString());
    }
}
