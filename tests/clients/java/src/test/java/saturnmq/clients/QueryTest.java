package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static saturnmq.clients.Clients.message;
import static saturnmq.clients.Clients.stored;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;

/** Finding single messages again. */
class QueryTest {
    @Test
    void messagesAreFoundByEachOfTheirKeys() throws Exception {
        String topic = Cluster.createTopic("by-key", 2);
        long begin = System.currentTimeMillis() - 1_000;
        for (int i = 0; i < 6; i++) {
            Message keyed = message(topic, "t", "keyed-" + i);
            keyed.setKeys(List.of("order-" + i, i % 2 == 0 ? "even" : "odd"));
            stored(Cluster.producer().send(keyed));
        }
        assertEquals(Set.of("keyed-3"), query(topic, "order-3", begin, 1));
        assertEquals(Set.of("keyed-0", "keyed-2", "keyed-4"), query(topic, "even", begin, 3));
    }

    private static Set<String> query(String topic, String key, long begin, int wanted)
        throws Exception {
        AtomicReference<Set<String>> found = new AtomicReference<>(Set.of());
        Await.until(wanted + " messages of key " + key, () -> {
            long end = System.currentTimeMillis() + 1_000;
            Set<String> bodies = new HashSet<>();
            for (MessageExt message : Cluster.admin().queryMessage(topic, key, 32, begin, end)
                .getMessageList()) {
                bodies.add(Inbox.body(message));
            }
            found.set(bodies);
            return bodies.size() >= wanted;
        });
        return found.get();
    }

    @Test
    void messageIsFoundByUniqueIdAndByOffsetId() throws Exception {
        String topic = Cluster.createTopic("by-id", 1);
        Clients.seed(topic, "t", "other", 3);
        SendResult sent = stored(Cluster.producer().send(message(topic, "t", "wanted")));
        for (String id : List.of(sent.getMsgId(), sent.getOffsetMsgId())) {
            Await.until("message of id " + id, () -> {
                MessageExt found = Cluster.admin().viewMessage(topic, id);
                return found != null && Inbox.body(found).equals("wanted")
                    && found.getQueueOffset() == 3;
            });
        }
    }

    @Test
    void offsetOfTimeFindsTheFirstMessageNotOlder() throws Exception {
        String topic = Cluster.createTopic("by-time", 1);
        Clients.seed(topic, "t", "old", 5);
        long split = System.currentTimeMillis() + 300;
        Await.until("time to pass", () -> System.currentTimeMillis() > split);
        Clients.seed(topic, "t", "recent", 5);
        MessageQueue queue =
            Cluster.queues(topic).iterator().next();
        Await.until("all 10 messages readable", () -> Cluster.stored(topic) == 10);
        // Just before the new ones: the nearest and the next later message are the same.
        Await.until("offset 5", () -> Cluster.admin().searchOffset(queue, split) == 5);
        assertEquals(0, Cluster.admin().searchOffset(queue, split - 60_000));
        assertTrue(Cluster.admin().searchOffset(queue, split + 60_000) >= 9);
    }
}
