package saturnmq.store;

import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/** A record as a broker served it. */
final class Stored {
    final MessageExt message;
    /** Of the whole record, as hexadecimal digits. */
    final String hash;

    private Stored(MessageExt message, String hash) {
        this.message = message;
        this.hash = hash;
    }

    /** All records of a body that a pull, a query or a view brought. */
    static List<Stored> all(byte[] body) throws Exception {
        List<Stored> found = new ArrayList<>();
        ByteBuffer rest = ByteBuffer.wrap(body);
        while (rest.hasRemaining()) {
            byte[] record = new byte[rest.getInt(rest.position())];
            rest.get(record);
            MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(record), true, true);
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(record);
            found.add(new Stored(message, UtilAll.bytes2string(digest)));
        }
        return found;
    }

    long place() {
        return message.getCommitLogOffset();
    }

    /** Where consumers find it: topic, queue and offset. */
    String name() {
        return message.getTopic() + "/" + message.getQueueId() + "/" + message.getQueueOffset();
    }

    /** What it is indexed under. */
    List<String> keys() {
        List<String> keys = new ArrayList<>();
        String unique = message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX);
        if (unique != null) {
            keys.add(unique);
        }
        if (message.getKeys() != null) {
            keys.addAll(List.of(message.getKeys().split(" ")));
        }
        return keys;
    }

    @Override
    public String toString() {
        return name() + " at " + place() + " " + hash;
    }
}
