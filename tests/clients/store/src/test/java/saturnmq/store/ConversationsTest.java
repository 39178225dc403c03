package saturnmq.store;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.remoting.exception.RemotingTimeoutException;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The same requests to SaturnMQ and to Apache's broker get the same answers. */
class ConversationsTest {
    private static final long PATIENCE_MS = 10_000;
    /** How long an answer that should not come is waited for. */
    private static final long SILENCE_MS = 300;
    /** Requests that change nothing are repeated this long while the answers differ. */
    private static final long SETTLING_MS = 10_000;
    private static final Set<Integer> READS = Set.of(11, 12, 14, 21, 29, 30, 31, 32, 33, 38, 43, 45,
        46, 101, 105, 106, 200, 201, 202, 203, 204, 206, 208, 219, 224, 300, 303, 304, 305, 307,
        308, 311, 312, 313, 317, 321, 328, 343, 345, 351, 352, 361);
    private static final Pattern NAME = Pattern.compile("\\{([a-z0-9]+)(?:\\.(\\w+))?([+-]\\d+)?}");

    private static Path work;
    private static Side ours;
    private static Side theirs;

    /** One of the two brokers and what it answered so far. */
    private static final class Side implements AutoCloseable {
        private final Server server;
        private final Map<String, NettyRemotingClient> connections = new HashMap<>();
        private final Map<String, Map<String, String>> saved = new HashMap<>();

        Side(Server server) {
            this.server = server;
        }

        private NettyRemotingClient connection(String name) {
            return connections.computeIfAbsent(name, missing -> {
                NettyClientConfig config = new NettyClientConfig();
                config.setClientCloseSocketIfTimeout(false);
                NettyRemotingClient client = new NettyRemotingClient(config);
                client.start();
                return client;
            });
        }

        /** The answer, or null when there is none. */
        RemotingCommand ask(Script.Step step) throws Exception {
            RemotingCommand request = RemotingCommand.createRequestCommand(step.code, null);
            request.setExtFields(step.fields(this::filled));
            if (step.body != null) {
                String body = filled(step.body);
                request.setBody(body.startsWith("BATCH ") ? Script.batch(body.substring(6))
                    : body.getBytes(StandardCharsets.UTF_8));
            }
            String version = step.mark("@version=");
            if (version != null) {
                request.setVersion(Integer.parseInt(version));
            }
            String to = step.is("@names") ? server.nameServer() : server.address();
            String connection = step.mark("@on=");
            boolean silent = step.is("@silent");
            try {
                return connection(connection == null ? "" : connection)
                    .invokeSync(to, request, silent ? SILENCE_MS : PATIENCE_MS);
            } catch (RemotingTimeoutException none) {
                if (silent) {
                    return null;
                }
                throw new AssertionError(step + ": no answer from " + to, none);
            }
        }

        /** Everything in braces: {@code now}, {@code broker}, or a value of a saved answer. */
        private String filled(String text) {
            Matcher name = NAME.matcher(text);
            StringBuilder filled = new StringBuilder();
            while (name.find()) {
                String value = value(name.group(1), name.group(2));
                if (name.group(3) != null) {
                    value = Long.toString(Long.parseLong(value) + Long.parseLong(name.group(3)));
                }
                name.appendReplacement(filled, Matcher.quoteReplacement(value));
            }
            return name.appendTail(filled).toString();
        }

        private String value(String name, String field) {
            if (name.equals("now")) {
                return Long.toString(System.currentTimeMillis());
            } else if (name.equals("broker")) {
                return server.address();
            }
            Map<String, String> answer = saved.get(name);
            String id = answer.getOrDefault("msgId", "");
            // The place of the record in the log.
            String value = "log".equals(field)
                ? Long.toString(Long.parseLong(id.substring(16), 16)) : answer.get(field);
            if (value == null) {
                throw new AssertionError("no " + field + " in " + name + ": " + answer);
            }
            return value;
        }

        @Override
        public void close() throws Exception {
            connections.values().forEach(NettyRemotingClient::shutdown);
            server.close();
        }
    }

    @BeforeAll
    static void start() throws Exception {
        work = Files.createTempDirectory("conversations");
        String[] more = {"enablePropertyFilter=true", "maxMessageSize=65536", "enableLmq=true",
            "enableMultiDispatch=true"};
        ours = new Side(Saturn.start(Files.createDirectories(work.resolve("ours")).resolve("store"),
            more));
        String[] timers = {more[0], more[1], more[2], more[3], "timerWheelEnable=true"};
        theirs = new Side(Apache.start(
            Files.createDirectories(work.resolve("theirs")).resolve("store"),
            Apache.RELEASE.startsWith("4.") ? more : timers));
    }

    @AfterAll
    static void stop() throws Exception {
        ours.close();
        theirs.close();
        Stores.delete(work);
    }

    @Execution(ExecutionMode.SAME_THREAD)
    @ParameterizedTest
    @ValueSource(strings = {"sending", "batches", "pulling", "retries", "offsets", "clients",
        "transactions", "administration", "names", "timers", "light"})
    void theAnswersAreThoseOfApache(String name) throws Exception {
        List<String> wrong = new ArrayList<>();
        for (Script.Step step : Script.read(name + ".txt")) {
            if (!step.is(Apache.RELEASE.startsWith("4.") ? "@5" : "@4")) {
                String found;
                try {
                    found = compared(step);
                } catch (RuntimeException | AssertionError failure) {
                    found = "\n  " + failure;
                }
                if (found != null) {
                    wrong.add(step + found);
                }
            }
        }
        assertEquals("", String.join("\n", wrong));
    }

    /** What is wrong about a step, or null. */
    private static String compared(Script.Step step) throws Exception {
        String code = step.mark("[");
        boolean read = READS.contains(step.code);
        long end = System.currentTimeMillis() + SETTLING_MS;
        while (true) {
            RemotingCommand expected = theirs.ask(step);
            RemotingCommand found = ours.ask(step);
            String different = different(step, expected, found);
            String unexpected = code == null || expected == null
                || code.equals(expected.getCode() + "]") ? null : "\n  Apache: " + expected;
            if (different == null && unexpected == null) {
                return null;
            }
            if (!read || System.currentTimeMillis() > end) {
                return different == null ? unexpected : different;
            }
            Thread.sleep(20);
        }
    }

    private static String different(Script.Step step, RemotingCommand expected,
        RemotingCommand found) {
        boolean deliberate = step.is("!") || step.is(Apache.RELEASE.startsWith("4.") ? "!4" : "!5");
        if (expected == null || found == null) {
            boolean same = expected == found && step.is("@silent");
            return same != deliberate ? null
                : "\n  Apache: " + expected + "\n  SaturnMQ: " + found;
        }
        save(step, expected, theirs);
        save(step, found, ours);
        Map<String, String> their = Answer.flat(step.code, expected, theirs.server.address());
        Map<String, String> our = Answer.flat(step.code, found, ours.server.address());
        // SaturnMQ names the field that is missing or garbled.
        if (their.get("code").equals(our.get("code")) && (Answer.isUnforeseen(their.get("remark"))
            || our.get("remark").startsWith("the field "))) {
            their.remove("remark");
            our.remove("remark");
        }
        String loose = step.mark("~");
        StringBuilder text = new StringBuilder();
        Set<String> names = new TreeSet<>(their.keySet());
        names.addAll(our.keySet());
        for (String name : names) {
            String one = their.get(name);
            String two = our.get(name);
            boolean kind = loose != null && one != null && two != null
                && Set.of(loose.split(",")).stream().anyMatch(name::endsWith);
            if (!kind && (one == null || !one.equals(two))) {
                text.append("\n    ").append(name).append("\n      Apache:   ").append(one)
                    .append("\n      SaturnMQ: ").append(two);
            }
        }
        if (deliberate) {
            return text.length() > 0 ? null : "\n  is no longer different";
        }
        return text.length() > 0 ? text.toString() : null;
    }

    private static void save(Script.Step step, RemotingCommand answer, Side side) {
        String name = step.mark("@save=");
        if (name != null && answer.getExtFields() != null) {
            side.saved.put(name, answer.getExtFields());
        }
    }
}
