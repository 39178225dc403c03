package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static saturnmq.clients.Clients.message;
import static saturnmq.clients.Clients.stored;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Test;

/** SQL92 selectors; the broker runs with enablePropertyFilter=true. */
class SelectorTest {
    private static final String WANTED = "price BETWEEN 3 AND 6 AND (region = 'north' OR"
        + " region IS NULL) AND note NOT CONTAINS 'no' AND TAGS IN ('t', 'u')";

    /** Sends 40 messages and returns the bodies of those that {@link #WANTED} passes. */
    private static List<String> seed(String topic) throws Exception {
        List<String> wanted = new ArrayList<>();
        for (int i = 0; i < 40; i++) {
            String region = new String[] {"north", "south", null, "north"}[i % 4];
            int price = i % 10;
            String tag = i % 3 == 0 ? "v" : "t";
            String note = i == 4 ? "not this" : "take it";
            Message message = message(topic, tag, "m" + i);
            message.putUserProperty("price", Integer.toString(price));
            message.putUserProperty("note", note);
            if (region != null) {
                message.putUserProperty("region", region);
            }
            stored(Cluster.producer().send(message));
            boolean passes = price >= 3 && price <= 6 && !"south".equals(region)
                && !note.contains("no") && !tag.equals("v");
            if (passes) {
                wanted.add("m" + i);
            }
        }
        assertTrue(wanted.size() > 4 && wanted.size() < 20, wanted.toString());
        return wanted;
    }

    @Test
    void pushConsumerGetsWhatItsSelectorPasses() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("sql", 4);
            List<String> wanted = seed(topic);
            Inbox inbox = new Inbox();
            DefaultMQPushConsumer consumer = clients.push(Cluster.unique("sql"));
            consumer.subscribe(topic, MessageSelector.bySql(WANTED));
            consumer.registerMessageListener(Clients.into(inbox));
            consumer.start();
            inbox.await(wanted.size());
            wanted.addAll(seed(topic));
            inbox.await(wanted.size());
            assertEquals(wanted.size(), inbox.size());
            assertEquals(new HashSet<>(wanted), new HashSet<>(inbox.bodies()));
        }
    }

    @Test
    void litePullConsumerGetsWhatItsSelectorPasses() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("sql-lite", 2);
            List<String> wanted = seed(topic);
            DefaultLitePullConsumer consumer = clients.litePull(Cluster.unique("sql-lite"));
            consumer.subscribe(topic, MessageSelector.bySql(WANTED));
            consumer.start();
            Inbox inbox = new Inbox();
            Await.until("the selected messages", () -> {
                List<MessageExt> polled = consumer.poll(500);
                inbox.add(polled);
                return inbox.size() >= wanted.size();
            });
            assertEquals(new HashSet<>(wanted), new HashSet<>(inbox.bodies()));
            assertEquals(wanted.size(), inbox.size());
        }
    }

    @Test
    void selectorThatCannotBeCompiledIsRefusedWithItsPlace() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("sql-bad", 1);
            DefaultMQPushConsumer consumer = clients.push(Cluster.unique("sql-bad"));
            consumer.subscribe(topic, MessageSelector.bySql("price >> 3"));
            consumer.registerMessageListener(Clients.into(new Inbox()));
            MQClientException refused = assertThrows(MQClientException.class, consumer::start);
            assertTrue(refused.toString().contains("at line 1, column"), refused.toString());
        }
    }
}
