package saturnmq.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Stores of Apache's broker that SaturnMQ cannot carry on: named, and left as they are. */
class RefusedTest {
    private static Path work;

    @BeforeAll
    static void directory() throws Exception {
        work = Files.createTempDirectory("refused");
    }

    @AfterAll
    static void remove() throws Exception {
        Stores.delete(work);
    }

    /** A store that Apache filled with these settings and closed. */
    private static Path made(String name, String... settings) throws Exception {
        Path store = work.resolve(name);
        try (Apache apache = Apache.start(store, settings)) {
            new Load(apache, new Ledger()).some(name);
        }
        return store;
    }

    private static void refused(Path store, String... parts) throws Exception {
        Map<String, Integer> before = Stores.contents(store);
        String said = Saturn.refusal(store);
        for (String part : parts) {
            assertTrue(said.contains(part), part + " in: " + said);
        }
        assertEquals(before, Stores.contents(store));
    }

    private static void onlyFrom5() {
        Assumptions.assumeTrue(Apache.RELEASE.startsWith("5."));
    }

    @Test
    void queuesAndStateInRocksDb() throws Exception {
        onlyFrom5();
        Path store = work.resolve("rocks");
        Snapshot there;
        try (Apache apache = Apache.start(store, "storeType=defaultRocksDB");
            Wire wire = new Wire(apache)) {
            Load load = new Load(apache, new Ledger());
            load.some("rocks");
            load.resume(Load.WORKERS);
            there = Snapshot.of(apache);
            // What `mqadmin rocksDBConfigToJson` asks for.
            int code = wire.ask(Wire.EXPORT_STATE, "configType",
                "topics;subscriptionGroups;consumerOffsets").getCode();
            assertEquals(0, code);
        }
        refused(store, "consumequeue holds consume queues in RocksDB", "remove the directory");
        Stores.delete(store.resolve("consumequeue"));
        refused(store, "config/topics holds topics in RocksDB");
        Stores.delete(store.resolve("config/topics"));
        refused(store, "config/subscriptionGroups holds consumer groups in RocksDB");
        Stores.delete(store.resolve("config/subscriptionGroups"));
        refused(store, "config/consumerOffsets holds consumer offsets in RocksDB");
        Stores.delete(store.resolve("config/consumerOffsets"));
        try (Saturn saturn = Saturn.start(store)) {
            Snapshot.of(saturn).equals(there);
        }
    }

    @Test
    void queuesInRocksDbBesideFiles() throws Exception {
        onlyFrom5();
        Path store = made("double", "rocksdbCQDoubleWriteEnable=true");
        refused(store, "consumequeue holds consume queues in RocksDB");
        // What the sentence says to do: nothing is lost by it.
        Stores.delete(store.resolve("consumequeue"));
        Ledger sent = new Ledger();
        try (Saturn saturn = Saturn.start(store)) {
            Snapshot served = Snapshot.of(saturn);
            assertTrue(served.messages.size() > 90, served.queues.toString());
            new Load(saturn, sent).some("saturnmq");
            sent.check(Snapshot.of(saturn));
        }
    }

    @Test
    void aDledgerLog() throws Exception {
        onlyFrom5();
        Path store = made("dledger", "enableDLegerCommitLog=true", "dLegerGroup=store",
            "dLegerPeers=n0-127.0.0.1:" + Apache.freePort(), "dLegerSelfId=n0");
        refused(store, "dledger-n0 holds a DLedger log");
    }

    @Test
    void tieredStorage() throws Exception {
        onlyFrom5();
        Path store = made("tiered",
            "messageStorePlugIn=org.apache.rocketmq.tieredstore.TieredMessageStore");
        refused(store, "tieredStoreMetadata.json holds messages in tiered storage");
    }

    @Test
    void severalLogDirectories() throws Exception {
        Path store = work.resolve("several");
        Path[] logs = {work.resolve("log-1"), work.resolve("log-2")};
        String key = "storePathCommitLog=" + logs[0] + "," + logs[1];
        Snapshot there;
        try (Apache apache = Apache.start(store, key)) {
            new Load(apache, new Ledger()).large(150);
            there = Snapshot.of(apache);
        }
        Map<String, Integer> before = Stores.contents(store);
        String said = Saturn.refusal(store, key);
        assertTrue(said.contains("storePathCommitLog"), said);
        assertEquals(before, Stores.contents(store));
        // Brought into one directory they are one log.
        Path log = Files.createDirectory(store.resolve("commitlog"));
        for (Path directory : logs) {
            assertTrue(Stores.files(directory).size() > 0, directory + " is used");
            for (Path file : Stores.files(directory)) {
                Files.move(file, log.resolve(file.getFileName()));
            }
        }
        try (Saturn saturn = Saturn.start(store)) {
            Snapshot.of(saturn).equals(there);
        }
    }

    @Test
    void compactedAndStaticTopics() throws Exception {
        onlyFrom5();
        Path store = work.resolve("topics");
        try (Apache apache = Apache.start(store); Wire wire = new Wire(apache)) {
            topic(wire, "Compacted", "+cleanup.policy=COMPACTION");
            new Load(apache, new Ledger()).one("Compacted");
            Await.until("a compacted topic", () ->
                Files.isDirectory(store.resolve("compaction/compactionLog/Compacted")));
            wire.makeStatic("Static");
        }
        refused(store, "compactionLog/Compacted holds a compacted topic");
        Stores.delete(store.resolve("compaction/compactionLog"));
        refused(store, "topicQueueMapping.json holds static topics");
    }

    private static void topic(Wire wire, String name, String attributes) throws Exception {
        int code = wire.ask(Wire.UPDATE_TOPIC, "topic", name, "defaultTopic", "TBW102",
            "readQueueNums", 1, "writeQueueNums", 1, "perm", 6, "topicFilterType", "SINGLE_TAG",
            "topicSysFlag", 0, "order", false, "attributes", attributes).getCode();
        assertEquals(0, code);
    }

    @Test
    void aStoreThatApacheHasOpen() throws Exception {
        Path store = work.resolve("open");
        try (Apache apache = Apache.start(store)) {
            new Load(apache, new Ledger()).one("Plain");
            String said = Saturn.refusal(store);
            assertTrue(said.contains("is in use"), said);
            // Apache goes on.
            Ledger sent = new Ledger();
            new Load(apache, sent).some("apache");
            sent.check(Snapshot.of(apache));
        }
        // And it cannot open what SaturnMQ has open.
        try (Saturn saturn = Saturn.start(store)) {
            assertTrue(saturn.report().contains("ready"));
            Exception refused = null;
            try (Apache apache = Apache.start(store)) {
                assertTrue(apache.address().isEmpty(), "Apache opened it");
            } catch (RuntimeException locked) {
                refused = locked;
            }
            assertTrue(String.valueOf(refused).contains("already started"), "" + refused);
        }
    }

    @Test
    void timersStayAndTheStoreOpens() throws Exception {
        onlyFrom5();
        Path store = made("timers", "timerWheelEnable=true");
        assertTrue(Files.exists(store.resolve("timerwheel")));
        try (Saturn saturn = Saturn.start(store)) {
            assertTrue(Snapshot.of(saturn).messages.size() > 90);
        }
        assertTrue(Files.exists(store.resolve("timerwheel")));
    }
}
