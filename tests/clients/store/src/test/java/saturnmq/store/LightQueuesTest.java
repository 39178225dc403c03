package saturnmq.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Light queues: messages that enter queues besides their own one. */
class LightQueuesTest {
    private static final String TOPIC = "Dispatched";
    private static final String[] SETTINGS = {"enableLmq=true", "enableMultiDispatch=true"};
    private static final String EVERY = "%LMQ%every";
    private static final String SECOND = "%LMQ%second";
    private static final String GROUP = "%LMQ%readers";
    private static final int MESSAGES = 50;
    private static final int QUERY_OFFSET = 14;
    private static final long PATIENCE_SECONDS = 20;

    private static Path work;

    @BeforeAll
    static void directory() throws Exception {
        work = Files.createTempDirectory("light");
    }

    @AfterAll
    static void remove() throws Exception {
        Stores.delete(work);
    }

    /** An entry of a light queue, with what its record says. */
    private static String entry(long tags, MessageExt message) {
        return tags + " " + new String(message.getBody(), StandardCharsets.UTF_8) + " "
            + message.getProperty("INNER_MULTI_DISPATCH") + " "
            + message.getProperty("INNER_MULTI_QUEUE_OFFSET");
    }

    /** The entries of a light queue's files. */
    private static List<String> entries(Path store, String name) throws Exception {
        List<String> found = new ArrayList<>();
        for (Path path : Stores.files(store.resolve("consumequeue/" + name + "/0"))) {
            ByteBuffer file = ByteBuffer.wrap(Files.readAllBytes(path));
            for (int at = 0; at < file.capacity() && file.getInt(at + 8) > 0; at += 20) {
                byte[] record = new byte[file.getInt(at + 8)];
                long place = file.getLong(at);
                String log = String.format("%020d", place - place % Settings.LOG_FILE);
                byte[] bytes = Files.readAllBytes(store.resolve("commitlog/" + log));
                System.arraycopy(bytes, (int) (place % Settings.LOG_FILE), record, 0,
                    record.length);
                found.add(entry(file.getLong(at + 12), Stored.all(record).get(0).message));
            }
        }
        return found;
    }

    private static void send(DefaultMQProducer producer, String round, int number)
        throws Exception {
        Message message = new Message(TOPIC, "Tag" + number % 3,
            (round + "-" + number).getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("INNER_MULTI_DISPATCH",
            number % 2 == 0 ? EVERY + "," + SECOND : EVERY);
        producer.send(message, (queues, sent, none) -> queues.get(number % queues.size()), null);
    }

    /** Reads a light queue from {@code offset} on until it has {@code wanted} messages. */
    private static List<String> read(DefaultMQPullConsumer consumer, MessageQueue queue,
        long offset, int wanted) throws Exception {
        List<String> bodies = new ArrayList<>();
        long next = offset;
        while (bodies.size() < wanted) {
            PullResult result = consumer.pullBlockIfNotFound(queue, "*", next, 32);
            assertEquals(PullStatus.FOUND, result.getPullStatus(), queue + " at " + next);
            result.getMsgFoundList().forEach(message ->
                bodies.add(new String(message.getBody(), StandardCharsets.UTF_8)));
            next = result.getNextBeginOffset();
        }
        return bodies;
    }

    private static long progress(Server server) throws Exception {
        try (Wire wire = new Wire(server)) {
            var answer = wire.ask(QUERY_OFFSET, "consumerGroup", GROUP, "topic", EVERY, "queueId",
                0, "setZeroIfNotFound", false);
            return answer.getCode() == 0
                ? Long.parseLong(answer.getExtFields().get("offset")) : -1;
        }
    }

    /**
     * Sends to light queues of which the first has {@code before} messages, and reads them with a
     * stock client that waits for the first one.
     */
    private static void round(Server server, String round, int before) throws Exception {
        Load load = new Load(server, new Ledger());
        DefaultMQProducer producer = load.configured(new DefaultMQProducer("dispatching"));
        producer.setSendMsgTimeout(10_000);
        producer.start();
        DefaultMQPullConsumer consumer = load.configured(new DefaultMQPullConsumer(GROUP));
        consumer.start();
        try {
            send(producer, round, 0);
            // Only so the client hears of the broker: nobody registers light queues.
            MessageQueue own = new MessageQueue(TOPIC, Settings.BROKER_NAME, 0);
            Await.until("a route", () -> consumer.pull(own, "*", 0, 1) != null);
            MessageQueue every = new MessageQueue(EVERY, Settings.BROKER_NAME, 0);
            MessageQueue second = new MessageQueue(SECOND, Settings.BROKER_NAME, 0);
            assertEquals(List.of(round + "-0"), read(consumer, every, before, 1));
            var waiting = CompletableFuture.supplyAsync(() -> {
                try {
                    return read(consumer, every, before + 1, 1);
                } catch (Exception failure) {
                    throw new AssertionError(failure);
                }
            });
            List<String> sent = new ArrayList<>(List.of(round + "-0"));
            for (int number = 1; number < MESSAGES; number++) {
                send(producer, round, number);
                sent.add(round + "-" + number);
            }
            assertEquals(sent.get(1), waiting.get(PATIENCE_SECONDS, TimeUnit.SECONDS).get(0));
            assertEquals(sent, read(consumer, every, before, MESSAGES));
            List<String> half = new ArrayList<>();
            for (int number = 0; number < MESSAGES; number += 2) {
                half.add(sent.get(number));
            }
            assertEquals(half, read(consumer, second, before / 2, MESSAGES / 2));
            assertEquals(before + MESSAGES, consumer.maxOffset(every));
            assertEquals(0, consumer.minOffset(every));
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore()
                .updateConsumeOffsetToBroker(every, before + MESSAGES, false);
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
        Await.until("the progress", () -> progress(server) == before + MESSAGES);
    }

    @Test
    void bothWriteTheSame() throws Exception {
        Path ours = work.resolve("ours");
        try (Saturn saturn = Saturn.start(ours, SETTINGS)) {
            round(saturn, "one", 0);
        }
        Path theirs = work.resolve("theirs");
        try (Apache apache = Apache.start(theirs, SETTINGS)) {
            round(apache, "one", 0);
        }
        assertEquals(entries(theirs, EVERY), entries(ours, EVERY));
        assertEquals(entries(theirs, SECOND), entries(ours, SECOND));
        assertEquals(MESSAGES, entries(ours, EVERY).size());
        assertEquals(lightOffsets(theirs), lightOffsets(ours));
        Saturn.verify(ours);
        Saturn.verify(theirs);
    }

    private static JSONObject lightOffsets(Path store) throws Exception {
        String text = Files.readString(store.resolve("config/lmqConsumerOffset.json"));
        return JSON.parseObject(text).getJSONObject("lmqOffsetTable");
    }

    /** Every entry follows the one before it: its offset stands in the record's property. */
    private static void isDense(Path store, int messages) throws Exception {
        List<String> entries = entries(store, EVERY);
        assertEquals(messages, entries.size());
        for (int at = 0; at < messages; at++) {
            String offsets = entries.get(at).substring(entries.get(at).lastIndexOf(' ') + 1);
            assertEquals(at, Integer.parseInt(offsets.split(",")[0]), entries.get(at));
        }
    }

    @Test
    void lightQueuesGoToApacheAndBack() throws Exception {
        Path store = work.resolve("moved");
        try (Saturn saturn = Saturn.start(store, SETTINGS)) {
            round(saturn, "first", 0);
        }
        isDense(store, MESSAGES);
        try (Apache apache = Apache.start(store, SETTINGS)) {
            assertEquals(MESSAGES, progress(apache));
            round(apache, "second", MESSAGES);
        }
        Saturn killed = Saturn.start(store, SETTINGS);
        assertEquals(2 * MESSAGES, progress(killed));
        round(killed, "third", 2 * MESSAGES);
        killed.kill();
        // Its entries and its next offset come from the log.
        Stores.delete(store.resolve("consumequeue/" + SECOND));
        try (Saturn saturn = Saturn.start(store, SETTINGS)) {
            round(saturn, "fourth", 3 * MESSAGES);
        }
        isDense(store, 4 * MESSAGES);
        assertEquals(2 * MESSAGES, entries(store, SECOND).size());
        Saturn.verify(store);
        try (Apache apache = Apache.start(store, SETTINGS)) {
            assertEquals(4 * MESSAGES, progress(apache));
            round(apache, "fifth", 4 * MESSAGES);
        }
        isDense(store, 5 * MESSAGES);
        assertTrue(lightOffsets(store).containsKey(EVERY + "@" + GROUP));
    }
}
