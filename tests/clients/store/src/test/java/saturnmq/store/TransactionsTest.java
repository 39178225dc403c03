package saturnmq.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Transactions that are open while a store changes hands. */
class TransactionsTest {
    private static final String COMMIT = "8";
    private static final String ROLLBACK = "12";
    private static final String HALF = "RMQ_SYS_TRANS_HALF_TOPIC";
    private static final String OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
    private static final String GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC";
    /** 5.x notes ends at once: it asks about, and delivers, again what it has not noted. */
    private static final String[] SOON = {"transactionTimeOut=500",
        "transactionCheckInterval=1000", "transactionCheckMax=1000",
        "transactionOpBatchInterval=20"};
    /** As 5.x is delivered: ends are noted three seconds later. */
    private static final String[] SOON_AND_SLOW_NOTES = {"transactionTimeOut=500",
        "transactionCheckInterval=500", "transactionCheckMax=1000"};

    private static Path work;

    @BeforeAll
    static void directory() throws Exception {
        work = Files.createTempDirectory("transactions");
    }

    @AfterAll
    static void remove() throws Exception {
        Stores.delete(work);
    }

    /** Keys of the messages that consumers get to see, one for each message. */
    private static List<String> delivered(Server server) throws Exception {
        List<String> keys = new ArrayList<>();
        try (Wire wire = new Wire(server)) {
            for (int queue = 0; queue < 4; queue++) {
                keys.addAll(keys(wire, Load.TRANSACTIONS, queue));
            }
        }
        return keys.stream().sorted().collect(Collectors.toList());
    }

    private static List<String> keys(Wire wire, String topic, int queue) throws Exception {
        List<String> keys = new ArrayList<>();
        long end = wire.number(Wire.MAX_OFFSET, topic, queue);
        for (Stored stored : Snapshot.queue(wire, topic, queue, 0, end)) {
            keys.add(stored.message.getKeys());
        }
        return keys;
    }

    private static boolean all(Server server, Collection<String> keys) throws Exception {
        return delivered(server).containsAll(keys);
    }

    private static void onlyAndOnce(Set<String> keys, Server server) throws Exception {
        assertEquals(new ArrayList<>(keys), delivered(server));
    }

    /** What {@link Load#transactions} leaves: one that was ended, and this many that are open. */
    private static Set<String> open(String round, int pending) {
        Set<String> keys = new TreeSet<>();
        for (int i = 0; i < pending; i++) {
            keys.add("pending-" + round + "-" + i);
        }
        return keys;
    }

    private static Set<String> begin(Server server, String round, int pending) throws Exception {
        new Load(server, new Ledger()).transactions(round, pending);
        Await.until("the ended one", () -> delivered(server).contains("ended-" + round));
        return open(round, pending);
    }

    /** The broker ends {@code open}, and what begins afterwards, and nothing twice. */
    private static void ended(Server server, Set<String> before, Set<String> open, String round)
        throws Exception {
        Load load = new Load(server, new Ledger());
        load.answer(() -> all(server, open));
        // What comes later shows that nothing comes twice.
        Set<String> later = begin(server, round, 1);
        load.answer(() -> all(server, later));
        Set<String> expected = new TreeSet<>(before);
        expected.addAll(open);
        expected.addAll(later);
        expected.add("ended-" + round);
        onlyAndOnce(expected, server);
    }

    private static void thereAndBack(Path store, Set<String> before, Set<String> open)
        throws Exception {
        Set<String> then;
        Set<String> left;
        try (Apache apache = Apache.start(store, SOON)) {
            ended(apache, before, open, "apache");
            left = begin(apache, "left", 3);
            then = new TreeSet<>(delivered(apache));
        }
        try (Saturn saturn = Saturn.start(store, SOON)) {
            ended(saturn, then, left, "saturnmq again");
        }
        Saturn.verify(store);
    }

    @Test
    void openOnesAreEndedOnceByTheOther() throws Exception {
        Path store = work.resolve("open");
        Set<String> open;
        try (Saturn saturn = Saturn.start(store)) {
            open = begin(saturn, "saturnmq", 2);
        }
        thereAndBack(store, Set.of("ended-saturnmq"), open);
    }

    @Test
    void onesThatWereAskedAboutWhenTheBrokerWasKilledAreEndedOnceByTheOther() throws Exception {
        Path store = work.resolve("killed");
        Set<String> open;
        try (Saturn saturn = Saturn.start(store, SOON); Wire wire = new Wire(saturn)) {
            open = begin(saturn, "saturnmq", 2);
            // Three halves, and two copies of each that nobody ended. Of a copy whose op message
            // is not there yet Apache does not know that it is one.
            Await.until("questions", () -> {
                long ops = wire.number(Wire.MAX_OFFSET, OP, 0);
                return ops >= 5 && wire.number(Wire.MAX_OFFSET, HALF, 0) == ops + 2;
            });
            saturn.kill();
        }
        thereAndBack(store, Set.of("ended-saturnmq"), open);
    }

    @Test
    void whatApacheHadNotNotedIsNotDeliveredAgain() throws Exception {
        Path store = work.resolve("not-noted");
        Set<String> open;
        Set<String> before;
        try (Apache apache = Apache.start(store, SOON_AND_SLOW_NOTES);
            Wire wire = new Wire(apache)) {
            open = begin(apache, "apache", 2);
            long halves = wire.number(Wire.MAX_OFFSET, HALF, 0);
            // It asks about the ended one as well until it has noted its end.
            Await.until("questions", () -> wire.number(Wire.MAX_OFFSET, HALF, 0) > halves);
            before = new TreeSet<>(delivered(apache));
        }
        try (Saturn saturn = Saturn.start(store, SOON)) {
            ended(saturn, before, open, "saturnmq");
        }
        Saturn.verify(store);
    }

    private static void end(Server server, Stored half, String how) throws Exception {
        try (Wire wire = new Wire(server)) {
            var answer = wire.ask(Wire.END_TRANSACTION, "producerGroup", Load.PRODUCERS,
                "tranStateTableOffset", half.message.getQueueOffset(), "commitLogOffset",
                half.place(), "commitOrRollback", how, "fromTransactionCheck", false,
                "msgId", "", "transactionId", "");
            assertEquals(0, answer.getCode(), answer.toString());
        }
    }

    /** Begins three: one to commit, one to roll back, one to be asked about. */
    private static void three(Server server) throws Exception {
        Load load = new Load(server, new Ledger());
        for (String key : new String[] {"committed", "rolled back", "asked"}) {
            load.half(key);
        }
    }

    private static List<Stored> halves(Saturn saturn) throws Exception {
        try (Wire wire = new Wire(saturn)) {
            return Snapshot.queue(wire, HALF, 0, 0, 3);
        }
    }

    private static void endTwo(Server server, List<Stored> halves) throws Exception {
        end(server, halves.get(0), COMMIT);
        end(server, halves.get(1), ROLLBACK);
        try (Wire wire = new Wire(server)) {
            Await.until("notes of two ends", () -> noted(wire) == 2);
        }
        onlyAndOnce(Set.of("committed"), server);
    }

    /** Half messages that op messages name: 4.x writes one number into each, 5.x a list. */
    private static long noted(Wire wire) throws Exception {
        long end = wire.number(Wire.MAX_OFFSET, OP, 0);
        return Snapshot.queue(wire, OP, 0, 0, end).stream()
            .flatMap(stored -> Stream.of(new String(stored.message.getBody()).split(",")))
            .count();
    }

    private static void askedAboutTheThird(Server server) throws Exception {
        new Load(server, new Ledger()).answer(() -> all(server, Set.of("asked")));
        onlyAndOnce(new TreeSet<>(Set.of("asked", "committed")), server);
    }

    @Test
    void aProducerEndsAtApacheWhatItBeganAtSaturn() throws Exception {
        Path store = work.resolve("ended-there");
        List<Stored> halves;
        try (Saturn saturn = Saturn.start(store)) {
            three(saturn);
            halves = halves(saturn);
        }
        try (Apache apache = Apache.start(store)) {
            endTwo(apache, halves);
        }
        try (Apache apache = Apache.start(store, SOON)) {
            askedAboutTheThird(apache);
        }
    }

    @Test
    void aProducerEndsAtSaturnWhatItBeganAtApache() throws Exception {
        Path store = work.resolve("ended-here");
        try (Apache apache = Apache.start(store)) {
            three(apache);
        }
        try (Saturn saturn = Saturn.start(store)) {
            endTwo(saturn, halves(saturn));
        }
        try (Saturn saturn = Saturn.start(store, SOON)) {
            askedAboutTheThird(saturn);
        }
    }

    @Test
    void oneThatWasGivenUpStaysSo() throws Exception {
        Path store = work.resolve("given-up");
        String[] once = {"transactionTimeOut=500", "transactionCheckInterval=500",
            "transactionCheckMax=1"};
        try (Saturn saturn = Saturn.start(store, once); Wire wire = new Wire(saturn)) {
            begin(saturn, "saturnmq", 1);
            Await.until("given up", () -> wire.number(Wire.MAX_OFFSET, GIVEN_UP, 0) == 1);
            Await.until("its note", () -> wire.number(Wire.MAX_OFFSET, OP, 0)
                == wire.number(Wire.MAX_OFFSET, HALF, 0));
        }
        try (Apache apache = Apache.start(store, SOON); Wire wire = new Wire(apache)) {
            ended(apache, Set.of("ended-saturnmq"), Set.of(), "apache");
            assertEquals(1, wire.number(Wire.MAX_OFFSET, GIVEN_UP, 0));
            String name = keys(wire, GIVEN_UP, 0).get(0);
            assertTrue(name.equals("pending-saturnmq-0"), name);
        }
    }
}
