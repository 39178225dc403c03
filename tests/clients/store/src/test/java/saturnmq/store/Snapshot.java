package saturnmq.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Everything a broker serves: messages, index, and the state of topics, groups and offsets. */
final class Snapshot {
    private static final String READER = "snapshot";
    /** Has a thousand queues and never a message. */
    private static final Set<String> IDLE = Set.of("BenchmarkTest");
    /** Members of a topic or group that both releases of the broker know and keep. */
    private static final List<String> TOPIC = List.of("readQueueNums", "writeQueueNums", "perm",
        "order", "topicFilterType", "topicSysFlag");
    private static final List<String> GROUP = List.of("consumeEnable", "consumeBroadcastEnable",
        "retryQueueNums", "retryMaxTimes", "brokerId", "consumeFromMinEnable");

    /** First and next offset of each topic/queue. */
    final Map<String, List<Long>> queues = new TreeMap<>();
    /** By topic/queue/offset. */
    final Map<String, Stored> messages = new TreeMap<>();
    final Map<String, String> topics = new TreeMap<>();
    final Map<String, String> groups = new TreeMap<>();
    /** Next offset of each topic@group and queue. */
    final Map<String, Long> progress = new TreeMap<>();
    final Map<String, Long> delays = new TreeMap<>();

    static Snapshot of(Server server) throws Exception {
        Snapshot snapshot = new Snapshot();
        try (Wire wire = new Wire(server)) {
            snapshot.readState(wire);
            for (String topic : snapshot.topics.keySet()) {
                if (!IDLE.contains(topic)) {
                    snapshot.readTopic(wire, topic);
                }
            }
        }
        return snapshot;
    }

    private void readState(Wire wire) throws Exception {
        keep(wire.json(Wire.TOPICS).getJSONObject("topicConfigTable"), TOPIC, topics);
        keep(wire.json(Wire.GROUPS).getJSONObject("subscriptionGroupTable"), GROUP, groups);
        groups.remove(READER);
        JSONObject offsets = wire.json(Wire.CONSUMER_OFFSETS).getJSONObject("offsetTable");
        for (String name : offsets.keySet()) {
            JSONObject queues = offsets.getJSONObject(name);
            queues.keySet().forEach(id -> progress.put(name + "/" + id, queues.getLong(id)));
        }
        JSONObject levels = wire.json(Wire.DELAY_OFFSETS).getJSONObject("offsetTable");
        levels.keySet().forEach(level -> delays.put(level, levels.getLong(level)));
    }

    private static void keep(JSONObject table, List<String> members, Map<String, String> into) {
        for (String name : table.keySet()) {
            JSONObject entry = table.getJSONObject(name);
            Map<String, Object> kept = new TreeMap<>();
            members.forEach(member -> kept.put(member, entry.get(member)));
            into.put(name, kept.toString());
        }
    }

    private void readTopic(Wire wire, String topic) throws Exception {
        String config = topics.get(topic);
        int count = Math.max(member(config, "readQueueNums"), member(config, "writeQueueNums"));
        for (int queue = 0; queue < count; queue++) {
            long min = wire.number(Wire.MIN_OFFSET, topic, queue);
            long max = wire.number(Wire.MAX_OFFSET, topic, queue);
            if (max > 0) {
                queues.put(topic + "/" + queue, List.of(min, max));
                readQueue(wire, topic, queue, min, max);
            }
        }
    }

    private static int member(String config, String name) {
        String after = config.substring(config.indexOf(name + "=") + name.length() + 1);
        return Integer.parseInt(after.split("[,}]")[0]);
    }

    private void readQueue(Wire wire, String topic, int queue, long min, long max)
        throws Exception {
        queue(wire, topic, queue, min, max).forEach(stored -> messages.put(stored.name(), stored));
    }

    /** The messages from {@code min} to before {@code max}, which must all be there. */
    static List<Stored> queue(Wire wire, String topic, int queue, long min, long max)
        throws Exception {
        List<Stored> found = new ArrayList<>();
        long offset = min;
        while (offset < max) {
            RemotingCommand answer = wire.ask(Wire.PULL, "consumerGroup", READER, "topic", topic,
                "queueId", queue, "queueOffset", offset, "maxMsgNums", 32, "sysFlag", 4,
                "commitOffset", 0, "suspendTimeoutMillis", 0, "subscription", "*",
                "subVersion", 0, "expressionType", "TAG");
            assertEquals(0, answer.getCode(), topic + "/" + queue + " at " + offset + ": " + answer);
            for (Stored stored : Stored.all(answer.getBody())) {
                assertEquals(topic + "/" + queue + "/" + offset, stored.name());
                found.add(stored);
                offset++;
            }
        }
        return found;
    }

    /** Fails unless it holds what {@code before} holds, unchanged; more is allowed. */
    void contains(Snapshot before) {
        before.messages.forEach((name, stored) ->
            assertEquals(stored.toString(), String.valueOf(messages.get(name))));
        before.topics.forEach((name, topic) -> assertEquals(topic, topics.get(name), name));
        before.groups.forEach((name, group) -> assertEquals(group, groups.get(name), name));
        before.progress.forEach((name, offset) -> assertTrue(
            offset <= progress.getOrDefault(name, -1L),
            () -> name + ": " + offset + ", then " + progress.get(name)));
    }

    /** Fails unless it holds exactly what {@code other} holds; new system topics are allowed. */
    void equals(Snapshot other) {
        contains(other);
        assertEquals(other.queues, queues);
        assertEquals(other.messages.keySet(), messages.keySet());
        other.progress.forEach((name, offset) -> assertEquals(offset, progress.get(name), name));
        other.delays.forEach((level, offset) -> assertEquals(offset, delays.get(level), level));
    }

    Map<Long, Stored> byPlace() {
        Map<Long, Stored> found = new HashMap<>();
        messages.values().forEach(stored -> found.put(stored.place(), stored));
        return found;
    }

    /**
     * Asks for every message by its offset, and for all messages of every {@code step}th by each
     * of its keys; returns how many keys there were.
     */
    int findAll(Server server, int step) throws Exception {
        Map<String, Set<Long>> keys = new HashMap<>();
        for (Stored stored : messages.values()) {
            for (String key : stored.keys()) {
                keys.computeIfAbsent(stored.message.getTopic() + "#" + key, k -> new TreeSet<>())
                    .add(stored.place());
            }
        }
        int asked = 0;
        try (Wire wire = new Wire(server)) {
            for (Stored stored : messages.values()) {
                if (asked++ % step == 0) {
                    view(wire, stored);
                }
            }
            asked = 0;
            for (Map.Entry<String, Set<Long>> entry : keys.entrySet()) {
                if (asked++ % step == 0) {
                    query(wire, entry.getKey(), entry.getValue());
                }
            }
        }
        return keys.size();
    }

    private static void view(Wire wire, Stored stored) throws Exception {
        RemotingCommand answer = wire.ask(Wire.VIEW, "offset", stored.place());
        assertEquals(0, answer.getCode(), stored + ": " + answer);
        List<Stored> found = Stored.all(answer.getBody());
        assertEquals(List.of(stored.toString()), Arrays.asList(found.get(0).toString()));
    }

    private static void query(Wire wire, String name, Set<Long> places) throws Exception {
        String[] parts = name.split("#", 2);
        RemotingCommand answer = wire.ask(Wire.QUERY, "topic", parts[0], "key", parts[1],
            "maxNum", 64, "beginTimestamp", 0, "endTimestamp", Long.MAX_VALUE);
        assertNotNull(answer.getBody(), name + ": " + answer);
        Set<Long> found = new HashSet<>();
        for (Stored stored : Stored.all(answer.getBody())) {
            if (stored.keys().contains(parts[1]) && stored.message.getTopic().equals(parts[0])) {
                found.add(stored.place());
            }
        }
        if (places.size() < 32) {
            assertEquals(places, found, name);
        }
    }

    /**
     * Asks for the offset of each store time that only one message of its queue has, in queues of
     * at most {@code longest} messages; returns how many there were.
     */
    int findTimes(Server server, int longest) throws Exception {
        Map<String, List<Stored>> byTime = new TreeMap<>();
        for (Stored stored : messages.values()) {
            String queue = stored.message.getTopic() + "/" + stored.message.getQueueId();
            if (queues.get(queue).get(1) > longest) {
                continue;
            }
            byTime.computeIfAbsent(queue + "/" + stored.message.getStoreTimestamp(),
                k -> new ArrayList<>()).add(stored);
        }
        int asked = 0;
        try (Wire wire = new Wire(server)) {
            for (List<Stored> same : byTime.values()) {
                if (same.size() == 1) {
                    var message = same.get(0).message;
                    RemotingCommand answer = wire.ask(Wire.OFFSET_BY_TIME, "topic",
                        message.getTopic(), "queueId", message.getQueueId(), "timestamp",
                        message.getStoreTimestamp());
                    assertEquals(Long.toString(message.getQueueOffset()),
                        answer.getExtFields().get("offset"), same.get(0).name());
                    asked++;
                }
            }
        }
        return asked;
    }
}
