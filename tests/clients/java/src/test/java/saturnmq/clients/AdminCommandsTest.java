package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertTrue;
import static saturnmq.clients.Clients.message;
import static saturnmq.clients.Clients.stored;

import java.util.regex.Pattern;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What mqadmin prints about the broker. */
@Tag("admin")
class AdminCommandsTest {
    private static void assertPrints(String output, String pattern) {
        assertTrue(Pattern.compile(pattern, Pattern.MULTILINE).matcher(output).find(),
            "no " + pattern + " in:\n" + output);
    }

    private static String broker() throws Exception {
        return Cluster.brokers().get(0);
    }

    private static String cluster() throws Exception {
        var info = Cluster.admin().examineBrokerClusterInfo();
        return info.getClusterAddrTable().keySet().iterator().next();
    }

    private static String brokerName(String topic) throws Exception {
        MessageQueue queue = Cluster.queues(topic).iterator().next();
        return queue.getBrokerName();
    }

    @Test
    void updateTopicCreatesATopicThatListAndRouteShow() throws Exception {
        String topic = Cluster.unique("made-by-tool");
        String made = MqAdmin.run("updateTopic", "-b", broker(), "-t", topic, "-r", "3", "-w", "5");
        assertPrints(made, "create topic to " + Pattern.quote(broker()) + " success");
        assertPrints(made, "readQueueNums=3");
        Await.until("5 queues", () -> Cluster.queues(topic).size() == 5);
        assertPrints(MqAdmin.run("topicList"), "^" + topic + "\\s*$");
        String route = MqAdmin.run("topicRoute", "-t", topic);
        assertPrints(route, Pattern.quote(broker()));
        assertPrints(route, "\"readQueueNums\":\\s*3");
        assertPrints(route, "\"writeQueueNums\":\\s*5");
        assertPrints(route, "\"brokerName\":\\s*\"" + brokerName(topic) + "\"");
    }

    @Test
    void updateTopicReachesTheWholeCluster() throws Exception {
        String topic = Cluster.unique("made-by-cluster");
        String made = MqAdmin.run("updateTopic", "-c", cluster(), "-t", topic);
        assertPrints(made, "create topic to " + Pattern.quote(broker()) + " success");
        Await.until("8 queues", () -> Cluster.queues(topic).size() == 8);
    }

    @Test
    void deleteTopicRemovesItFromBrokerAndNameServer() throws Exception {
        String topic = Cluster.createTopic("deleted-by-tool", 2);
        String output = MqAdmin.run("deleteTopic", "-c", cluster(), "-t", topic);
        assertPrints(output, "delete topic \\[" + topic + "\\] from NameServer success");
        Await.until("topic gone", () -> !Cluster.admin().fetchAllTopicList().getTopicList()
            .contains(topic));
    }

    @Test
    void topicStatusShowsTheOffsetsOfEachQueue() throws Exception {
        String topic = Cluster.createTopic("status", 1);
        Clients.seed(topic, "t", "status", 7);
        Cluster.awaitStored(topic, 7);
        assertPrints(MqAdmin.run("topicStatus", "-t", topic),
            "^" + brokerName(topic) + "\\s+0\\s+0\\s+7\\s+20\\d\\d-");
    }

    @Test
    void clusterListNamesTheBroker() throws Exception {
        String topic = Cluster.createTopic("cluster", 1);
        assertPrints(MqAdmin.run("clusterList"), "^" + cluster() + "\\s+" + brokerName(topic)
            + "\\s+0\\s+" + Pattern.quote(broker()));
    }

    @Test
    void brokerStatusListsRuntimeFigures() throws Exception {
        String output = MqAdmin.run("brokerStatus", "-b", broker());
        for (String key : new String[] {"bootTimestamp", "brokerVersionDesc", "putTps",
            "getTotalTps", "msgPutTotalTodayNow", "commitLogMaxOffset", "commitLogMinOffset",
            "runtime", "commitLogDirCapacity", "putMessageTimesTotal"}) {
            assertPrints(output, "^" + key + "\\s*:\\s*\\S");
        }
    }

    @Test
    void messagesAreFoundByKeyAndById() throws Exception {
        String topic = Cluster.createTopic("query", 1);
        Message keyed = message(topic, "colour", "body of the keyed one");
        keyed.setKeys("number-17");
        SendResult sent = stored(Cluster.producer().send(keyed));
        Await.until("index", () -> !Cluster.admin().queryMessage(topic, "number-17", 8,
            0, System.currentTimeMillis() + 1_000).getMessageList().isEmpty());
        assertPrints(MqAdmin.run("queryMsgByKey", "-t", topic, "-k", "number-17"),
            sent.getMsgId() + "\\s+0\\s+0");
        String id = sent.getOffsetMsgId();
        String byId = Cluster.CLIENT_VERSION.startsWith("4.")
            ? MqAdmin.run("queryMsgById", "-i", id)
            : MqAdmin.run("queryMsgById", "-t", topic, "-i", id);
        assertPrints(byId, "Topic:\\s+" + topic);
        assertPrints(byId, "Tags:\\s+\\[?colour");
        assertPrints(byId, "Keys:\\s+\\[?number-17");
        assertPrints(byId, "Queue Offset:\\s+0");
        String byUniqueKey = MqAdmin.run("queryMsgByUniqueKey", "-t", topic, "-i", sent.getMsgId());
        assertPrints(byUniqueKey, "Topic:\\s+" + topic);
        assertPrints(byUniqueKey, "Queue Offset:\\s+0");
    }

    @Test
    void consumerProgressShowsWhatIsLeft() throws Exception {
        String topic = Cluster.createTopic("progress", 1);
        String group = Cluster.unique("progress");
        try (Clients clients = new Clients()) {
            Clients.seed(topic, "t", "consumed", 6);
            Inbox inbox = new Inbox();
            clients.push(group, topic, "*", inbox);
            inbox.await(6);
            Cluster.awaitProgress(group, 0);
        }
        Clients.seed(topic, "t", "left", 3);
        Cluster.awaitStored(topic, 9);
        String output = MqAdmin.run("consumerProgress", "-g", group);
        assertPrints(output, "^" + topic + "\\s+" + brokerName(topic)
            + "\\s+0\\s+9\\s+6\\b.*\\b3\\b");
        assertPrints(output, "Diff Total: 3");
    }
}
