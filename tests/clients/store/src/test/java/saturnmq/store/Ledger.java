package saturnmq.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;

import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;

/** What producers were told: for every log offset its body and where consumers find it. */
final class Ledger {
    private static final class Sent {
        private final String name;
        private final byte[] body;

        private Sent(String name, byte[] body) {
            this.name = name;
            this.body = body;
        }
    }

    private final Map<Long, Sent> sent = new ConcurrentHashMap<>();

    /** Takes down the answer to a send of one message or of a batch. */
    void add(SendResult result, Message... messages) throws Exception {
        assertEquals(SendStatus.SEND_OK, result.getSendStatus());
        String[] ids = result.getOffsetMsgId().split(",");
        assertEquals(messages.length, ids.length);
        for (int i = 0; i < ids.length; i++) {
            long place = MessageDecoder.decodeMessageId(ids[i]).getOffset();
            boolean delayed = messages[i].getDelayTimeLevel() > 0;
            String name = result.getMessageQueue().getTopic() + "/"
                + result.getMessageQueue().getQueueId() + "/" + (result.getQueueOffset() + i);
            sent.put(place, new Sent(delayed ? null : name, messages[i].getBody()));
        }
    }

    int size() {
        return sent.size();
    }

    /** Leaves out what stands at or behind {@code place}. */
    void cut(long place) {
        sent.keySet().removeIf(at -> at >= place);
    }

    /** Fails unless everything is where it was said to be. */
    void check(Snapshot snapshot) {
        Map<Long, Stored> byPlace = snapshot.byPlace();
        sent.forEach((place, message) -> {
            Stored stored = byPlace.get(place);
            assertNotNull(stored, () -> "nothing at " + place + ", where " + message.name + " was");
            if (message.name != null) {
                assertEquals(message.name, stored.name());
            }
            if (!Arrays.equals(message.body, stored.message.getBody())) {
                throw new AssertionError(stored + " has another body");
            }
        });
    }
}
