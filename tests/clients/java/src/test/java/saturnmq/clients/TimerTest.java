package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.Method;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Messages for a time: at their time, once, also over a restart. */
class TimerTest {
    private static final String WAITING = "timer-waiting";
    private static final int WAITING_COUNT = 5;

    /** Calls the setter of a 5.x client; older clients know only the property behind it. */
    private static Message timed(Message message, String setter, String property, long value)
        throws Exception {
        for (Method method : Message.class.getMethods()) {
            if (method.getName().equals(setter)) {
                method.invoke(message, value);
                return message;
            }
        }
        MessageAccessor.putProperty(message, property, Long.toString(value));
        return message;
    }

    private static Message afterMs(Message message, long ms) throws Exception {
        return timed(message, "setDelayTimeMs", "TIMER_DELAY_MS", ms);
    }

    private static Message afterSeconds(Message message, long seconds) throws Exception {
        return timed(message, "setDelayTimeSec", "TIMER_DELAY_SEC", seconds);
    }

    private static Message at(Message message, long ms) throws Exception {
        return timed(message, "setDeliverTimeMs", "TIMER_DELIVER_MS", ms);
    }

    @Test
    void eachKindOfTimeIsKept() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("timer", 1);
            DefaultMQProducer producer = clients.producer(Cluster.unique("timer"));
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique("timer"), topic, "*", inbox);
            Map<String, Long> due = new HashMap<>();
            long now = System.currentTimeMillis();
            due.put("ms", now + 1500);
            Clients.stored(producer.send(afterMs(Clients.message(topic, "t", "ms"), 1500)));
            due.put("seconds", System.currentTimeMillis() + 2000);
            Clients.stored(producer.send(afterSeconds(Clients.message(topic, "t", "seconds"), 2)));
            due.put("at", System.currentTimeMillis() + 3000);
            Clients.stored(producer.send(at(Clients.message(topic, "t", "at"), due.get("at"))));
            due.put("past", now - 1);
            Clients.stored(producer.send(at(Clients.message(topic, "t", "past"), now - 1)));
            List<MessageExt> arrived = inbox.await(due.size());
            assertEquals(due.keySet(), new HashSet<>(inbox.bodies()));
            assertEquals(due.size(), arrived.size(), "duplicates: " + inbox.bodies());
            for (MessageExt message : arrived) {
                String body = Inbox.body(message);
                assertTrue(message.getStoreTimestamp() >= due.get(body), "early: " + message);
                assertEquals(topic, message.getTopic());
                assertEquals("t", message.getTags());
            }
        }
    }

    @Test
    void aRecalledMessageIsNotDelivered() throws Exception {
        try (Clients clients = new Clients()) {
            DefaultMQProducer producer = clients.producer(Cluster.unique("timer"));
            Method recall;
            try {
                recall = producer.getClass()
                    .getMethod("recallMessage", String.class, String.class);
            } catch (NoSuchMethodException olderClient) {
                return;
            }
            String topic = Cluster.createTopic("recall", 1);
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique("timer"), topic, "*", inbox);
            long due = System.currentTimeMillis() + 3000;
            SendResult sent = producer.send(at(Clients.message(topic, "t", "recalled"), due));
            Object handle = sent.getClass().getMethod("getRecallHandle").invoke(sent);
            assertNotNull(handle, sent.toString());
            assertEquals(sent.getMsgId(), recall.invoke(producer, topic, handle));
            Clients.stored(producer.send(at(Clients.message(topic, "t", "kept"), due)));
            Clients.stored(producer.send(at(Clients.message(topic, "t", "last"), due + 1000)));
            inbox.await(2);
            assertEquals(Set.of("kept", "last"), new HashSet<>(inbox.bodies()));
        }
    }

    @Test
    void someWaitForTheRestart() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic(WAITING, 1);
            DefaultMQProducer producer = clients.producer(Cluster.unique("timer"));
            for (int i = 0; i < WAITING_COUNT; i++) {
                Message message = Clients.message(topic, "t", "waiting-" + i);
                Clients.stored(producer.send(afterSeconds(message, 5 + i)));
            }
        }
    }

    @Test
    @Tag("after-restart")
    void messagesThatWaitedComeAfterARestart() throws Exception {
        try (Clients clients = new Clients()) {
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique(WAITING), Cluster.unique(WAITING), "*", inbox);
            inbox.await(WAITING_COUNT);
            Set<String> wanted = new HashSet<>();
            for (int i = 0; i < WAITING_COUNT; i++) {
                wanted.add("waiting-" + i);
            }
            assertEquals(wanted, new HashSet<>(inbox.bodies()));
            assertEquals(wanted.size(), inbox.size(), "duplicates: " + inbox.bodies());
        }
    }
}
