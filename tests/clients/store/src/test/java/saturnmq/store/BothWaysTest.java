package saturnmq.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Stores that SaturnMQ wrote go to Apache's broker and back. */
class BothWaysTest {
    private static final String LOOPBACK = "127.0.0.1";
    private static final int QUEUE_FILE_MESSAGES = Settings.QUEUE_FILE / 20;
    /** Sends that are answered before SaturnMQ is killed. */
    private static final int HURRIED = 1_000;

    private static Path work;
    /** What SaturnMQ left after an orderly stop; tests use copies. */
    private static Path written;
    private static Ledger ledger;
    private static Snapshot served;

    @BeforeAll
    static void write() throws Exception {
        work = Files.createTempDirectory("store");
        written = work.resolve("written");
        ledger = new Ledger();
        served = fill(written, LOOPBACK, ledger);
        assertTrue(Stores.logFiles(written).size() > 1, "the log rolled");
        assertTrue(Stores.files(written.resolve("index")).size() > 1, "the index rolled");
        assertTrue(Stores.files(written.resolve("consumequeue/Plain/0")).size() > 1,
            "queues rolled");
    }

    @AfterAll
    static void remove() throws Exception {
        Stores.delete(work);
    }

    private static Snapshot fill(Path store, String host, Ledger sent) throws Exception {
        Snapshot snapshot;
        try (Saturn saturn = Saturn.startAt(store, host)) {
            new Load(saturn, sent).everything("saturnmq");
            snapshot = Snapshot.of(saturn);
        }
        sent.check(snapshot);
        return snapshot;
    }

    private static Path copy(String name) throws Exception {
        return Stores.copy(written, work.resolve(name));
    }

    /** What a test says of the store that Apache has opened. */
    private interface Check {
        void see(Apache apache, Snapshot there) throws Exception;
    }

    /**
     * Apache opens the store, {@code check} looks at it, Apache writes; SaturnMQ opens it, serves
     * what both wrote, and writes.
     */
    private static void thereAndBack(Path store, String host, Check check) throws Exception {
        Ledger sent = new Ledger();
        Snapshot after;
        try (Apache apache = Apache.startAt(store, host)) {
            Snapshot there = Snapshot.of(apache);
            check.see(apache, there);
            new Load(apache, sent).some("apache");
            after = Snapshot.of(apache);
            after.contains(there);
            sent.check(after);
        }
        back(store, host, sent, after);
    }

    private static void back(Path store, String host, Ledger sent, Snapshot after)
        throws Exception {
        try (Saturn saturn = Saturn.startAt(store, host)) {
            Snapshot back = Snapshot.of(saturn);
            back.equals(after);
            back.findAll(saturn, 3);
            back.findTimes(saturn, Integer.MAX_VALUE);
            new Load(saturn, sent).some("saturnmq again");
            Snapshot end = Snapshot.of(saturn);
            end.contains(back);
            sent.check(end);
        }
        Saturn.verify(store);
    }

    /** Keys, and times as far as they do not hang on when a file was last changed. */
    private static void findAll(Apache apache, Snapshot there) throws Exception {
        assertTrue(there.findAll(apache, 1) > 500);
        boolean byChange = Apache.RELEASE.startsWith("4.");
        int longest = byChange ? QUEUE_FILE_MESSAGES : Integer.MAX_VALUE;
        assertTrue(there.findTimes(apache, longest) > 10);
    }

    @Test
    void aCleanStore() throws Exception {
        Path store = copy("clean");
        thereAndBack(store, LOOPBACK, (apache, there) -> {
            there.equals(served);
            findAll(apache, there);
        });
    }

    @Test
    void aGroupGoesOnWhereItStopped() throws Exception {
        Path store = copy("group");
        Snapshot after;
        try (Apache apache = Apache.start(store)) {
            Load load = new Load(apache, new Ledger());
            load.some("apache");
            assertEquals(names(Snapshot.of(apache), served), load.resume(Load.WORKERS));
            after = Snapshot.of(apache);
        }
        try (Saturn saturn = Saturn.start(store)) {
            Load load = new Load(saturn, new Ledger());
            load.some("saturnmq");
            assertEquals(names(Snapshot.of(saturn), after), load.resume(Load.WORKERS));
        }
    }

    /** Messages that the group reads, in {@code now} and not in {@code before}. */
    private static Set<String> names(Snapshot now, Snapshot before) {
        Set<String> names = new TreeSet<>(now.messages.keySet());
        names.removeAll(before.messages.keySet());
        names.removeIf(name -> !name.startsWith(Load.PLAIN + "/"));
        return names;
    }

    @Test
    void aStoreThatWasKilledUnderLoad() throws Exception {
        Path store = copy("killed");
        Ledger hurried = killed(store);
        thereAndBack(store, LOOPBACK, (apache, there) -> {
            there.contains(served);
            hurried.check(there);
        });
    }

    @Test
    void aTornTail() throws Exception {
        Path store = copy("torn");
        Ledger hurried = killed(store);
        long place = Stores.tear(store);
        hurried.cut(place);
        thereAndBack(store, LOOPBACK, (apache, there) -> {
            there.contains(served);
            hurried.check(there);
            assertEquals(place, apache.store().getMaxPhyOffset());
        });
    }

    private static Ledger killed(Path store) throws Exception {
        Ledger hurried = new Ledger();
        try (Saturn saturn = Saturn.start(store)) {
            Thread[] senders = new Load(saturn, hurried).untilKilled(4);
            Await.until("sends", () -> hurried.size() > HURRIED);
            saturn.kill();
            for (Thread sender : senders) {
                sender.join();
            }
        }
        assertTrue(Files.exists(store.resolve("abort")));
        return hurried;
    }

    @Test
    void withoutQueuesAndIndexApacheMakesTheSameBytes() throws Exception {
        Path store = copy("no-queues");
        Stores.delete(store.resolve("consumequeue"));
        Stores.delete(store.resolve("index"));
        thereAndBack(store, LOOPBACK, (apache, there) -> {
            there.equals(served);
            findAll(apache, there);
            assertEquals(Stores.contents(written.resolve("consumequeue")),
                Stores.contents(store.resolve("consumequeue")));
            assertEquals(Stores.indexContents(written), Stores.indexContents(store));
        });
    }

    @Test
    void withoutIndex() throws Exception {
        Path store = copy("no-index");
        Stores.delete(store.resolve("index"));
        // Apache finds no key of what stood there before; SaturnMQ finds all again.
        thereAndBack(store, LOOPBACK, (apache, there) -> there.equals(served));
    }

    @Test
    void ipv6Addresses() throws Exception {
        boolean offered;
        try (ServerSocket any = new ServerSocket(0, 1, InetAddress.getByName("::1"))) {
            offered = any.isBound();
        } catch (java.io.IOException refused) {
            offered = false;
        }
        if (!offered) {
            System.out.println("SKIPPED: this host has no ::1");
        }
        Assumptions.assumeTrue(offered);
        Path store = work.resolve("ipv6");
        Snapshot before = fill(store, "[::1]", new Ledger());
        thereAndBack(store, "[::1]", (apache, there) -> {
            there.equals(before);
            findAll(apache, there);
        });
    }

    @Test
    void delayedMessagesComeOnce() throws Exception {
        Path store = work.resolve("delays");
        Ledger sent = new Ledger();
        try (Saturn saturn = Saturn.start(store)) {
            new Load(saturn, sent).dueSoon("saturnmq", 3);
            assertEquals(0, delivered(Snapshot.of(saturn)));
        }
        try (Apache apache = Apache.start(store)) {
            try (Wire wire = new Wire(apache)) {
                Await.until("delivery by Apache", () -> count(wire, Load.DELAYED) == 3);
            }
            new Load(apache, sent).dueSoon("apache", 2);
            assertEquals(3, delivered(Snapshot.of(apache)));
        }
        try (Saturn saturn = Saturn.start(store); Wire wire = new Wire(saturn)) {
            Await.until("delivery by SaturnMQ", () -> count(wire, Load.DELAYED) == 5);
            // What comes later shows that nothing came twice.
            new Load(saturn, sent).dueSoon("saturnmq again", 1);
            Await.until("delivery by SaturnMQ", () -> count(wire, Load.DELAYED) >= 6);
            assertEquals(6, delivered(Snapshot.of(saturn)));
        }
    }

    @Test
    void pendingRetriesComeOnceAndCount() throws Exception {
        Path store = work.resolve("retries");
        try (Saturn saturn = Saturn.start(store)) {
            Load load = new Load(saturn, new Ledger());
            load.retried("first");
            assertEquals(List.of("first 0"), load.retry(1, true));
        }
        try (Apache apache = Apache.start(store)) {
            Load load = new Load(apache, new Ledger());
            assertEquals(List.of("first 1"), load.retry(1, true));
        }
        try (Saturn saturn = Saturn.start(store)) {
            Load load = new Load(saturn, new Ledger());
            assertEquals(List.of("first 2"), load.retry(1, false));
            // What comes later shows that nothing came twice.
            load.retried("second");
            assertEquals(List.of("second 0"), load.retry(1, false));
        }
    }

    private static long count(Wire wire, String topic) throws Exception {
        long count = 0;
        for (int queue = 0; queue < 4; queue++) {
            count += wire.number(Wire.MAX_OFFSET, topic, queue);
        }
        return count;
    }

    private static long delivered(Snapshot snapshot) {
        return snapshot.messages.keySet().stream()
            .filter(name -> name.startsWith(Load.DELAYED + "/")).count();
    }

    @Test
    void aCrashOfApacheInBetween() throws Exception {
        Path store = copy("apache");
        Path crashed = work.resolve("apache-crashed");
        Ledger sent = new Ledger();
        Snapshot there;
        try (Apache apache = Apache.start(store)) {
            new Load(apache, sent).some("apache");
            there = Snapshot.of(apache);
            // Written and not closed: what a crash leaves.
            Stores.copy(store, crashed);
        }
        try (Saturn saturn = Saturn.start(crashed)) {
            Snapshot back = Snapshot.of(saturn);
            back.contains(served);
            assertEquals(there.queues, back.queues);
            sent.check(back);
        }
    }
}
