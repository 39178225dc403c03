package saturnmq.store;

import com.alibaba.fastjson.JSON;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** An answer as a table from the place of a value to the value; times and ids by their kind. */
final class Answer {
    private static final Set<Integer> WITH_RECORDS = Set.of(11, 12, 33, 361);

    private static final List<String> NEWER = List.of(".enableActingMaster", ".pullOffset",
        ".topicPutTps", ".totalInflightDiff", ".consumeTps", "TimeStampStr");

    private Answer() {
    }

    static Map<String, String> flat(int request, RemotingCommand answer, String server) {
        Map<String, String> values = new TreeMap<>();
        values.put("code", Integer.toString(answer.getCode()));
        String remark = answer.getRemark();
        values.put("remark", remark == null || answer.getCode() == 0 ? "" : kind(remark, server));
        if (answer.getExtFields() != null) {
            answer.getExtFields().forEach((name, value) ->
                values.put("ext." + name, kind(value, server)));
        }
        byte[] body = answer.getBody();
        if (body == null || body.length == 0) {
            return values;
        }
        if (WITH_RECORDS.contains(request)) {
            records(body, server, values);
            return values;
        }
        String text = new String(body, StandardCharsets.UTF_8);
        try {
            json("body", JSON.parse(text), server, values);
            // What only newer releases tell; no client misses or minds it.
            values.keySet().removeIf(name -> NEWER.stream().anyMatch(name::endsWith));
        } catch (RuntimeException other) {
            values.put("body", kind(text, server));
        }
        return values;
    }

    /** Whether a remark is what Apache says when it did not foresee something. */
    static boolean isUnforeseen(String remark) {
        return remark.contains("Exception") || remark.contains("org.apache.rocketmq");
    }

    private static void records(byte[] body, String server, Map<String, String> values) {
        List<MessageExt> messages = MessageDecoder.decodes(ByteBuffer.wrap(body));
        int number = 0;
        for (MessageExt message : messages) {
            String place = "record " + number++;
            values.put(place, String.join(" ", message.getTopic(),
                Integer.toString(message.getQueueId()), Long.toString(message.getQueueOffset()),
                "flags", Integer.toString(message.getFlag()),
                Integer.toString(message.getSysFlag()), "retries",
                Integer.toString(message.getReconsumeTimes())));
            byte[] content = message.getBody() == null ? new byte[0] : message.getBody();
            values.put(place + " body", new String(content, StandardCharsets.UTF_8));
            message.getProperties().forEach((name, value) ->
                values.put(place + " " + name, kind(value, server)));
            // A broker of 5.x writes its own into every message.
            values.remove(place + " MSG_REGION");
            values.remove(place + " TRACE_ON");
        }
    }

    /** Names are not always text: a queue's name is an object. */
    private static void json(String place, Object value, String server,
        Map<String, String> values) {
        if (value instanceof Map && !((Map<?, ?>) value).isEmpty()) {
            ((Map<?, ?>) value).forEach((name, inner) ->
                json(place + "." + kind(String.valueOf(name), server), inner, server, values));
        } else if (value instanceof List && !((List<?>) value).isEmpty()) {
            List<Map<String, String>> items = new ArrayList<>();
            for (Object item : (List<?>) value) {
                Map<String, String> inner = new TreeMap<>();
                json("", item, server, inner);
                items.add(inner);
            }
            items.sort(Comparator.comparing(Map::toString));
            for (int i = 0; i < items.size(); i++) {
                String item = place + "[" + i + "]";
                items.get(i).forEach((name, inner) -> values.put(item + name, inner));
            }
        } else {
            values.put(place, kind(String.valueOf(value), server));
        }
    }

    /** Times, ids and addresses by what they are. */
    private static String kind(String text, String server) {
        return text.replace(server, "BROKER").replaceAll("\\b[0-9A-F]{32}\\b", "ID")
            .replaceAll("127\\.0\\.0\\.1:\\d+", "HOST").replaceAll("\\b1[5-9]\\d{11}\\b", "TIME")
            .replaceAll("@[0-9a-f]{6,8}\\b", "@N");
    }
}
