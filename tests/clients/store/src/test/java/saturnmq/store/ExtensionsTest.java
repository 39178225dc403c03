package saturnmq.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Extension files of consume queues, with the bits of SQL92 selectors. */
class ExtensionsTest {
    private static final String TOPIC = "Extended";
    private static final String[] SETTINGS = {"enableConsumeQueueExt=true",
        "enableCalcFilterBitMap=true", "enablePropertyFilter=true",
        "mappedFileSizeConsumeQueueExt=65536"};
    /** Sent before and after the group registers, each. */
    private static final int MESSAGES = 30;

    private static Path work;

    @BeforeAll
    static void directory() throws Exception {
        work = Files.createTempDirectory("extensions");
    }

    @AfterAll
    static void remove() throws Exception {
        Stores.delete(work);
    }

    /** Bodies of the messages that the group is to get, those of former rounds not among them. */
    private static void send(DefaultMQProducer producer, String round, Set<String> wanted)
        throws Exception {
        for (int price = 0; price < MESSAGES; price++) {
            String body = round + "-" + price;
            Message message = new Message(TOPIC, "Tag" + price % 3,
                body.getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("price", Integer.toString(price));
            producer.send(message, (queues, sent, none) -> queues.stream()
                .filter(queue -> queue.getQueueId() == 0).findFirst().orElseThrow(), null);
            if (price > 10) {
                wanted.add(body);
            }
        }
    }

    private static void round(Server server, String round) throws Exception {
        Load load = new Load(server, new Ledger());
        DefaultMQProducer producer = load.configured(new DefaultMQProducer("extended"));
        producer.setSendMsgTimeout(10_000);
        producer.start();
        Set<String> wanted = new TreeSet<>();
        Set<String> got = new ConcurrentSkipListSet<>();
        DefaultMQPushConsumer consumer =
            load.configured(new DefaultMQPushConsumer("extended-group"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(TOPIC, MessageSelector.bySql("price > 10"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message ->
                got.add(new String(message.getBody(), StandardCharsets.UTF_8)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        try {
            send(producer, round + "-before", wanted);
            consumer.start();
            // It is registered once it gets messages.
            Await.until("the first messages", () -> got.containsAll(wanted));
            send(producer, round + "-after", wanted);
            Await.until("all messages", () -> got.containsAll(wanted));
            // After a kill those come again whose progress was not saved.
            got.removeIf(body -> !body.startsWith(round));
            assertEquals(wanted, got);
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    /** The units of queue 0 as they follow each other, without their times. */
    private static List<String> units(Path store) throws Exception {
        List<String> units = new ArrayList<>();
        for (Path path : Stores.files(store.resolve("consumequeue_ext/" + TOPIC + "/0"))) {
            ByteBuffer file = ByteBuffer.wrap(Files.readAllBytes(path));
            while (file.getShort(file.position()) > 0) {
                byte[] unit = new byte[file.getShort(file.position())];
                file.get(unit);
                long code = ByteBuffer.wrap(unit).getLong(2);
                byte[] bits = Arrays.copyOfRange(unit, 18, unit.length);
                units.add(unit.length + " " + code + " " + new BigInteger(1, bits).toString(16));
            }
        }
        return units;
    }

    /** The tag code fields of queue 0. */
    private static List<Long> addresses(Path store) throws Exception {
        List<Long> addresses = new ArrayList<>();
        for (Path path : Stores.files(store.resolve("consumequeue/" + TOPIC + "/0"))) {
            ByteBuffer file = ByteBuffer.wrap(Files.readAllBytes(path));
            for (int at = 0; at < file.capacity() && file.getInt(at + 8) > 0; at += 20) {
                addresses.add(file.getLong(at + 12));
            }
        }
        return addresses;
    }

    @Test
    void bothWriteTheSame() throws Exception {
        Path ours = work.resolve("ours");
        try (Saturn saturn = Saturn.start(ours, SETTINGS)) {
            round(saturn, "one");
            round(saturn, "two");
        }
        Path theirs = work.resolve("theirs");
        try (Apache apache = Apache.start(theirs, SETTINGS)) {
            round(apache, "one");
            round(apache, "two");
        }
        assertEquals(units(theirs), units(ours));
        assertEquals(addresses(theirs), addresses(ours));
        assertEquals(4 * MESSAGES, units(ours).size());
        Saturn.verify(ours);
        Saturn.verify(theirs);
    }

    @Test
    void unitsGoToApacheAndBack() throws Exception {
        Path store = work.resolve("moved");
        try (Saturn saturn = Saturn.start(store, SETTINGS)) {
            round(saturn, "first");
        }
        List<String> first = units(store);
        try (Apache apache = Apache.start(store, SETTINGS)) {
            round(apache, "second");
        }
        List<String> second = units(store);
        assertEquals(first, second.subList(0, first.size()));
        Saturn killed = Saturn.start(store, SETTINGS);
        round(killed, "third");
        killed.kill();
        try (Saturn saturn = Saturn.start(store, SETTINGS)) {
            round(saturn, "fourth");
        }
        Saturn.verify(store);
        try (Apache apache = Apache.start(store, SETTINGS)) {
            round(apache, "fifth");
        }
        List<String> all = units(store);
        assertEquals(second, all.subList(0, second.size()));
        assertEquals(10 * MESSAGES, all.size());
        assertEquals(all.size(), addresses(store).size());
        // Without them the messages are served all the same.
        Stores.delete(store.resolve("consumequeue_ext"));
        try (Saturn saturn = Saturn.start(store, SETTINGS)) {
            round(saturn, "sixth");
        }
        assertTrue(addresses(store).size() == 12 * MESSAGES);
    }
}
