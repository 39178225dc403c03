package saturnmq.store;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.UnaryOperator;

/**
 * A scripted conversation: one request a line, in the notation that {@code conversations/README}
 * explains.
 */
final class Script {
    /** One request. Names in braces are filled in for each server. */
    static final class Step {
        final String place;
        final String text;
        /** Conditions that stand before the request, such as {@code !} or {@code [0]}. */
        final List<String> marks = new ArrayList<>();
        int code;
        final Map<String, String> fields = new LinkedHashMap<>();
        String body;

        private Step(String place, String text) {
            this.place = place;
            this.text = text;
        }

        boolean is(String mark) {
            return marks.contains(mark);
        }

        /** What stands behind {@code start} in a mark, or null. */
        String mark(String start) {
            return marks.stream().filter(mark -> mark.startsWith(start))
                .map(mark -> mark.substring(start.length())).findFirst().orElse(null);
        }

        /** The request's fields with everything in braces replaced. */
        HashMap<String, String> fields(UnaryOperator<String> filled) {
            HashMap<String, String> named = new HashMap<>();
            fields.forEach((name, value) -> named.put(name, filled.apply(value)));
            return named;
        }

        @Override
        public String toString() {
            return place + "  " + text;
        }
    }

    private Script() {
    }

    static List<Step> read(String name) throws Exception {
        List<Step> steps = new ArrayList<>();
        String text;
        try (var stream = Script.class.getResourceAsStream("/conversations/" + name)) {
            text = new String(stream.readAllBytes(), StandardCharsets.UTF_8);
        }
        int number = 0;
        for (String line : text.split("\n")) {
            number++;
            if (!line.isBlank() && !line.startsWith("#")) {
                steps.add(step(name + ":" + number, line.strip()));
            }
        }
        return steps;
    }

    private static Step step(String place, String line) {
        Step step = new Step(place, line);
        int bar = line.indexOf(" | ");
        step.body = bar < 0 ? null : unescaped(line.substring(bar + 3));
        String[] words = (bar < 0 ? line : line.substring(0, bar)).strip().split(" +");
        int at = 0;
        while ("!~[@(".indexOf(words[at].charAt(0)) >= 0) {
            step.marks.add(words[at++]);
        }
        String verb = words[at++];
        switch (verb) {
            case "send":
                send(step, words[at], words[at + 1]);
                at += 2;
                properties(step, words, at);
                break;
            case "pull":
                pull(step, words[at], words[at + 1], words[at + 2], words[at + 3]);
                at += 4;
                break;
            case "topic":
                topic(step, words[at], words[at + 1], words[at + 2]);
                at += 3;
                break;
            default:
                step.code = Integer.parseInt(verb);
        }
        for (; at < words.length; at++) {
            String word = words[at];
            if (verb.equals("send") && !word.startsWith(".")) {
                continue;
            }
            int equals = word.indexOf('=');
            String name = word.substring(word.startsWith(".") ? 1 : 0, equals);
            String value = unescaped(word.substring(equals + 1));
            if (value.equals("-")) {
                step.fields.remove(name);
            } else {
                step.fields.put(name, value);
            }
        }
        return step;
    }

    /** As SEND_MESSAGE_V2. */
    private static void send(Step step, String topic, String queue) {
        step.code = 310;
        String[] fields = {"a", "producer", "b", unescaped(topic), "c", "TBW102", "d", "4", "e",
            queue, "f", "0", "g", "{now}", "h", "0", "j", "0", "k", "false", "m", "false"};
        fill(step, fields);
    }

    /** Words of a send that do not begin with a dot are the message's properties. */
    private static void properties(Step step, String[] words, int from) {
        StringBuilder properties = new StringBuilder();
        for (int i = from; i < words.length; i++) {
            if (!words[i].startsWith(".")) {
                properties.append(unescaped(words[i].replaceFirst("=", "\u0001"))).append('\u0002');
            }
        }
        if (properties.indexOf("UNIQ_KEY") < 0) {
            properties.append("UNIQ_KEY\u0001")
                .append(String.format("%032X", step.place.hashCode() & 0xffffffffL))
                .append('\u0002');
        }
        step.fields.put("i", properties.toString());
    }

    private static void pull(Step step, String group, String topic, String queue, String offset) {
        step.code = 11;
        fill(step, "consumerGroup", unescaped(group), "topic", unescaped(topic), "queueId", queue,
            "queueOffset", offset, "maxMsgNums", "32", "sysFlag", "4", "commitOffset", "0",
            "suspendTimeoutMillis", "0", "subscription", "*", "subVersion", "0", "expressionType",
            "TAG");
    }

    private static void topic(Step step, String topic, String queues, String perm) {
        step.code = 17;
        fill(step, "topic", unescaped(topic), "defaultTopic", "TBW102", "readQueueNums", queues,
            "writeQueueNums", queues, "perm", perm, "topicFilterType", "SINGLE_TAG",
            "topicSysFlag", "0", "order", "false");
    }

    private static void fill(Step step, String... fields) {
        for (int i = 0; i < fields.length; i += 2) {
            step.fields.put(fields[i], fields[i + 1]);
        }
    }

    /** Messages with their properties, separated by {@code ;;}, as the body of a batch. */
    static byte[] batch(String text) {
        ByteBuffer batch = ByteBuffer.allocate(4 * text.length() + 1024);
        for (String message : text.split(" ;; ")) {
            String[] words = message.split(" ");
            StringBuilder properties = new StringBuilder();
            for (int i = 1; i < words.length; i++) {
                properties.append(words[i].replaceFirst("=", "\u0001")).append('\u0002');
            }
            byte[] body = words[0].getBytes(StandardCharsets.UTF_8);
            byte[] more = properties.toString().getBytes(StandardCharsets.UTF_8);
            batch.putInt(22 + body.length + more.length).putInt(0).putInt(0).putInt(0)
                .putInt(body.length).put(body).putShort((short) more.length).put(more);
        }
        return Arrays.copyOf(batch.array(), batch.position());
    }

    /** A blank is written {@code \s}, nothing {@code \e}, a letter {@code \}{@code uXXXX}. */
    private static String unescaped(String text) {
        StringBuilder plain = new StringBuilder();
        for (int i = 0; i < text.length(); i++) {
            char letter = text.charAt(i);
            if (letter != '\\') {
                plain.append(letter);
                continue;
            }
            switch (text.charAt(++i)) {
                case 's': plain.append(' '); break;
                case 'n': plain.append('\n'); break;
                case 'e': break;
                case 'u':
                    plain.append((char) Integer.parseInt(text.substring(i + 1, i + 5), 16));
                    i += 4;
                    break;
                case 'x': {
                    // \xNNNN*: a letter that many times.
                    int end = text.indexOf('*', i);
                    String times = text.substring(i + 1, end);
                    plain.append("x".repeat(Integer.parseInt(times)));
                    i = end;
                    break;
                }
                default: plain.append(text.charAt(i));
            }
        }
        return plain.toString();
    }
}
