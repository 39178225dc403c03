package saturnmq.clients;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.rocketmq.common.message.MessageExt;

/** The messages a consumer got, in order of arrival. */
final class Inbox {
    private final List<MessageExt> messages = new ArrayList<>();

    synchronized void add(Collection<MessageExt> arrived) {
        messages.addAll(arrived);
        notifyAll();
    }

    synchronized List<MessageExt> messages() {
        return new ArrayList<>(messages);
    }

    synchronized int size() {
        return messages.size();
    }

    List<String> bodies() {
        return messages().stream().map(Inbox::body).collect(Collectors.toList());
    }

    /** Waits for at least {@code count} messages and returns all that are there. */
    synchronized List<MessageExt> await(int count) throws InterruptedException {
        return await(count, Await.LIMIT);
    }

    synchronized List<MessageExt> await(int count, Duration limit) throws InterruptedException {
        long end = System.nanoTime() + limit.toNanos();
        while (messages.size() < count) {
            long left = (end - System.nanoTime()) / 1_000_000;
            if (left <= 0) {
                throw new AssertionError("wanted " + count + " messages, got " + messages.size()
                    + " in " + limit.toSeconds() + " s: " + bodies());
            }
            wait(left);
        }
        return new ArrayList<>(messages);
    }

    static String body(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }
}
