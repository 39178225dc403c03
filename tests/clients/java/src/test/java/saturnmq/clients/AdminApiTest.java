package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static saturnmq.clients.Clients.message;
import static saturnmq.clients.Clients.stored;

import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;

/** What the Dashboard and other programs ask through Apache's admin client. */
class AdminApiTest {
    private static String broker() throws Exception {
        return Cluster.brokers().get(0);
    }

    private static String id(DefaultMQPushConsumer consumer) {
        return consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
    }

    @Test
    void aMemberConsumesAMessageOnceMoreWhenItIsTold() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("directly", 1);
            String group = Cluster.unique("directly");
            SendResult sent = stored(Cluster.producer().send(message(topic, "t", "again")));
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = clients.push(group, topic, "*", inbox);
            inbox.await(1);
            var result = Cluster.admin().consumeMessageDirectly(group, id(consumer), topic,
                sent.getMsgId());
            assertEquals("CR_SUCCESS", result.getConsumeResult().toString());
            inbox.await(2);
            assertEquals(List.of("again", "again"), inbox.bodies());
            assertThrows(MQClientException.class, () -> Cluster.admin().consumeMessageDirectly(
                group, "nobody", topic, sent.getMsgId()));
        }
    }

    @Test
    void aGroupIsSeenFromEverySide() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("sides", 1);
            String group = Cluster.unique("sides");
            Clients.seed(topic, "t", "m", 5);
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = clients.push(group, topic, "*", inbox);
            inbox.await(5);
            MessageQueue queue = Cluster.queues(topic).get(0);
            Await.until("progress", () -> Cluster.admin().examineConsumeStats(group)
                .getOffsetTable().get(queue).getConsumerOffset() == 5);
            var span = Cluster.admin().queryConsumeTimeSpan(topic, group).get(0);
            assertEquals(0, span.getDelayTime());
            assertTrue(span.getConsumeTimeStamp() >= span.getMinTimeStamp(), span.toString());
            assertEquals(Set.of(group), new TreeSet<>(
                Cluster.admin().queryTopicConsumeByWho(topic).getGroupList()));
            var connection = Cluster.admin().examineConsumerConnectionInfo(group);
            assertEquals("CLUSTERING", connection.getMessageModel().toString());
            assertEquals("*", connection.getSubscriptionTable().get(topic).getSubString());
            var running = Cluster.admin().getConsumerRunningInfo(group, id(consumer), true);
            assertEquals("CONSUME_PASSIVELY",
                running.getProperties().getProperty("PROP_CONSUME_TYPE"));
            assertTrue(running.getJstack().contains("Consume"), running.getJstack());
            for (String[] item : new String[][] {{"TOPIC_PUT_NUMS", topic},
                {"GROUP_GET_NUMS", topic + "@" + group},
                {"GROUP_GET_LATENCY", "0@" + topic + "@" + group}}) {
                Await.until("item " + String.join(" ", item), () -> Cluster.admin()
                    .viewBrokerStatsData(broker(), item[0], item[1]).getStatsDay() != null);
            }
        }
    }

    @Test
    void anOffsetThatIsSetIsWhereTheGroupGoesOn() throws Exception {
        String topic = Cluster.createTopic("set-offset", 1);
        String group = Cluster.unique("set-offset");
        List<String> sent = Clients.seed(topic, "t", "m", 6);
        MessageQueue queue = Cluster.queues(topic).get(0);
        try (Clients clients = new Clients()) {
            Inbox inbox = new Inbox();
            clients.push(group, topic, "*", inbox);
            inbox.await(6);
            Await.until("progress", () -> Cluster.admin().examineConsumeStats(group)
                .getOffsetTable().get(queue).getConsumerOffset() == 6);
        }
        Cluster.admin().updateConsumeOffset(broker(), group, queue, 2);
        Cluster.awaitProgress(group, 4);
        try (Clients clients = new Clients()) {
            Inbox inbox = new Inbox();
            clients.push(group, topic, "*", inbox);
            inbox.await(4);
            assertEquals(new TreeSet<>(sent.subList(2, 6)), new TreeSet<>(inbox.bodies()));
        }
    }

    @Test
    void aProducerIsKnownUntilItLeaves() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("known", 1);
            String group = Cluster.unique("known");
            DefaultMQProducer producer = clients.producer(group);
            stored(producer.send(message(topic, "t", "here")));
            Await.until("its connection", () -> Cluster.admin()
                .examineProducerConnectionInfo(group, topic).getConnectionSet().size() == 1);
            producer.shutdown();
            Await.until("that it is gone", () -> {
                try {
                    Cluster.admin().examineProducerConnectionInfo(group, topic);
                    return false;
                } catch (Exception gone) {
                    return true;
                }
            });
        }
    }

    @Test
    void membersThatWantDifferentTagsGetNoneOfTheOthers() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("quarrel", 4);
            String group = Cluster.unique("quarrel");
            Inbox red = new Inbox();
            Inbox blue = new Inbox();
            clients.push(group, topic, "red", red);
            clients.push(group, topic, "blue", blue);
            Await.until("two members", () -> Cluster.admin()
                .examineConsumerConnectionInfo(group).getConnectionSet().size() == 2);
            Clients.seed(topic, "red", "red", 8);
            Clients.seed(topic, "blue", "blue", 8);
            // Who is left without is a matter of the last heartbeat: with Apache's brokers too.
            Await.until("all looked at", () ->
                Cluster.admin().examineConsumeStats(group).computeTotalDiff() == 0
                    && Cluster.admin().examineConsumeStats(group).getOffsetTable().size() >= 4);
            assertTrue(red.bodies().stream().allMatch(body -> body.startsWith("red")));
            assertTrue(blue.bodies().stream().allMatch(body -> body.startsWith("blue")));
        }
    }
}
