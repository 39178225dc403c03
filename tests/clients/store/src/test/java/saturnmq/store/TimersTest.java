package saturnmq.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.stream.Collectors;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;

/** Messages for a time that wait while a store changes hands; 5.x only. */
@EnabledIfSystemProperty(named = "rocketmq.version", matches = "5\\..*")
class TimersTest {
    private static final String TOPIC = "Timed";
    private static final String DELAY_SECONDS = "TIMER_DELAY_SEC";
    private static final String DELAY_MS = "TIMER_DELAY_MS";
    private static final String DELIVER_MS = "TIMER_DELIVER_MS";
    /** A message that became due later than its broker began comes within this time. */
    private static final long PUNCTUAL_MS = 4_000;
    /** Due while nobody serves. */
    private static final long SOON_MS = 1_500;
    /** Due once the other serves. */
    private static final long LATER_MS = 11_000;
    /** The same, where Apache stops first: it takes ten seconds. */
    private static final long LATER_THAN_A_STOP_MS = 16_000;
    private static final String[] PLAIN = {"timerWheelEnable=true", "recallMessageEnable=true",
        "mappedFileSizeTimerLog=104857600"};
    /** Whatever waits for longer than four seconds goes around again; files of 77 items. */
    private static final String[] TURNS = {"timerWheelEnable=true", "recallMessageEnable=true",
        "mappedFileSizeTimerLog=4096", "timerRollWindowSlot=4"};

    /** Closing one takes seconds in which a test would wait. */
    private static final List<Wire> WIRES = new CopyOnWriteArrayList<>();
    private static Path work;

    @BeforeAll
    static void directory() throws Exception {
        work = Files.createTempDirectory("timers");
    }

    @AfterAll
    static void remove() throws Exception {
        WIRES.parallelStream().forEach(Wire::close);
        Stores.delete(work);
    }

    /** What was sent and what is to become of it. */
    private static final class Sent {
        final Map<String, Long> due = new HashMap<>();
        final Map<String, String> handles = new HashMap<>();
        final long later;

        Sent(long later) {
            this.later = later;
        }

        void send(Wire wire, String key, String property, long delay) throws Exception {
            long now = System.currentTimeMillis();
            long value = delay;
            if (property.equals(DELIVER_MS)) {
                value += now;
            } else if (property.equals(DELAY_SECONDS)) {
                value /= 1000;
            }
            var answer = wire.askWith(key.getBytes(StandardCharsets.UTF_8), Wire.SEND,
                "producerGroup", "timers", "topic", TOPIC, "defaultTopic", "TBW102",
                "defaultTopicQueueNums", 1, "queueId", 0, "sysFlag", 0, "bornTimestamp", now,
                "flag", 7, "reconsumeTimes", 0, "unitMode", false, "batch", false,
                "properties", "UNIQ_KEY\u0001" + key + "\u0002KEYS\u0001" + key + "\u0002"
                    + property + "\u0001" + value + "\u0002");
            assertEquals(0, answer.getCode(), answer.toString());
            handles.put(key, answer.getExtFields().get("recallHandle"));
            long asked = property.equals(DELIVER_MS) ? value : now + delay / 1000 * 1000;
            due.put(key, asked);
        }

        /** One that was sent to whichever broker is not to be delivered. */
        void recall(Wire wire, String key) throws Exception {
            var answer = wire.ask(Wire.RECALL, "producerGroup", "timers", "topic", TOPIC,
                "recallHandle", handles.get(key));
            assertEquals(0, answer.getCode(), answer.toString());
            due.remove(key);
        }

        /** The same unless it is too late for it on a slow machine: then it is delivered. */
        void recallIfItWaits(Wire wire, String key) throws Exception {
            if (System.currentTimeMillis() + 1_500 < due.get(key)) {
                recall(wire, key);
            }
        }

        /** Some that are due soon and later. */
        void some(Wire wire) throws Exception {
            send(wire, "soon", DELIVER_MS, SOON_MS);
            for (String property : new String[] {DELAY_SECONDS, DELAY_MS, DELIVER_MS}) {
                send(wire, property, property, later);
            }
        }

        /** One that is recalled and one that the other may recall. */
        void recalled(Wire wire) throws Exception {
            send(wire, "recalled", DELIVER_MS, later);
            send(wire, "wanted", DELIVER_MS, later);
            recall(wire, "recalled");
            send(wire, "unwanted", DELIVER_MS, later);
        }

        /** All are delivered, each once and in time, by a broker that serves since {@code from}. */
        void delivered(Wire wire, long from) throws Exception {
            Await.until("delivery of " + due.keySet(), () -> keys(stored(wire))
                .containsAll(due.keySet()));
            // What comes later shows that nothing comes twice.
            send(wire, "last", DELIVER_MS, 1_000);
            Await.until("the last", () -> keys(stored(wire)).containsAll(due.keySet()));
            List<MessageExt> all = stored(wire);
            assertEquals(due.keySet().stream().sorted().collect(Collectors.toList()),
                keys(all).stream().sorted().collect(Collectors.toList()));
            for (MessageExt message : all) {
                inTime(message, from);
            }
        }

        private void inTime(MessageExt message, long from) {
            long time = due.get(message.getKeys());
            long early = time - message.getStoreTimestamp();
            assertTrue(early <= 0, message.getKeys() + " is early by " + early + " ms");
            if (message.getStoreTimestamp() >= from) {
                long late = message.getStoreTimestamp() - Math.max(time, from);
                assertTrue(late <= PUNCTUAL_MS, message.getKeys() + " is late by " + late);
            }
            assertEquals(7, message.getFlag());
            assertEquals(message.getKeys(), new String(message.getBody()));
            for (String name : new String[] {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS",
                "REAL_TOPIC", "REAL_QID"}) {
                assertTrue(message.getProperties().containsKey(name), message.toString());
            }
        }
    }

    private static List<MessageExt> stored(Wire wire) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        long end = wire.number(Wire.MAX_OFFSET, TOPIC, 0);
        for (Stored stored : Snapshot.queue(wire, TOPIC, 0, 0, end)) {
            found.add(stored.message);
        }
        return found;
    }

    private static List<String> keys(List<MessageExt> messages) {
        return messages.stream().map(MessageExt::getKeys).collect(Collectors.toList());
    }

    private static Server start(Path store, String[] settings, boolean apache) throws Exception {
        return apache ? Apache.start(store, settings) : Saturn.start(store, settings);
    }

    private static Wire to(Server server) {
        Wire wire = new Wire(server);
        WIRES.add(wire);
        return wire;
    }

    /** What a broker says about messages that wait is the same for both. */
    private static void told(Wire wire, int waiting) throws Exception {
        Await.until(waiting + " that wait", () -> {
            JSONObject topics = wire.json(Wire.TIMER_NUMBERS).getJSONObject("timingCount");
            JSONObject numbers = topics.getJSONObject(TOPIC);
            assertEquals(Set.of("count", "timeStamp"), numbers.keySet());
            int count = numbers.getIntValue("count");
            // The one that is due soon may have gone.
            return count == waiting || count == waiting - 1;
        });
        assertEquals(Set.of("counter", "stateVersion", "timestamp"),
            wire.json(Wire.TIMER_NUMBERS).getJSONObject("dataVersion").keySet());
        Await.until("a check point", () -> {
            ByteBuffer check = ByteBuffer.wrap(wire.ask(Wire.TIMER_CHECK).getBody());
            assertEquals(56, check.remaining());
            long readTime = check.getLong();
            long logEnd = check.getLong();
            return readTime > 0 && logEnd > 0 && check.getLong() > 0 && check.getLong() > 0;
        });
    }

    /**
     * The check point on disk is behind that many messages of the timer topic. What the timer log
     * has of later ones Apache enters again, and delivers twice, after a kill of its own too.
     */
    private static void noted(Path store, int messages) throws Exception {
        Await.until("a check point behind " + messages + " messages", () -> {
            Path file = store.resolve("config/timercheck");
            if (!Files.exists(file)) {
                return false;
            }
            ByteBuffer check = ByteBuffer.wrap(Files.readAllBytes(file));
            int behindReadTimeAndLogEnd = 2 * Long.BYTES;
            return check.remaining() >= behindReadTimeAndLogEnd + Long.BYTES
                && check.getLong(behindReadTimeAndLogEnd) >= messages;
        });
    }

    /** What waits at one is delivered by the other. */
    private static void handedOver(Path store, String[] settings, boolean fromApache)
        throws Exception {
        Sent sent = new Sent(fromApache ? LATER_THAN_A_STOP_MS : LATER_MS);
        try (Server first = start(store, settings, fromApache)) {
            sent.some(to(first));
            if (settings == PLAIN) {
                sent.recalled(to(first));
                told(to(first), 6);
            }
        }
        try (Server second = start(store, settings, !fromApache)) {
            long from = System.currentTimeMillis();
            Wire wire = to(second);
            if (settings == PLAIN) {
                sent.recallIfItWaits(wire, "unwanted");
            }
            sent.delivered(wire, from);
        }
        Saturn.verify(store);
    }

    @Test
    void whatWaitsAtSaturnComesFromApache() throws Exception {
        handedOver(work.resolve("from-saturn"), PLAIN, false);
    }

    @Test
    void whatWaitsAtApacheComesFromSaturn() throws Exception {
        handedOver(work.resolve("from-apache"), PLAIN, true);
    }

    @Test
    void whatGoesAroundAtApacheComesFromSaturn() throws Exception {
        handedOver(work.resolve("around"), TURNS, true);
    }

    @Test
    void whatWentAroundWhenSaturnWasKilledComesFromApache() throws Exception {
        Path store = work.resolve("killed");
        Sent sent = new Sent(LATER_MS);
        try (Saturn saturn = Saturn.start(store, TURNS)) {
            sent.some(to(saturn));
            noted(store, sent.due.size());
            saturn.kill();
        }
        try (Apache apache = Apache.start(store, TURNS)) {
            long from = System.currentTimeMillis();
            sent.delivered(to(apache), from);
        }
    }
}
