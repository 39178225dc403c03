package saturnmq.store;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Single requests to one broker, through Apache's own transport: records arrive as stored. */
final class Wire implements AutoCloseable {
    static final int UPDATE_TOPIC = 17;
    static final int PULL = 11;
    static final int QUERY = 12;
    static final int TOPICS = 21;
    static final int OFFSET_BY_TIME = 29;
    static final int MAX_OFFSET = 30;
    static final int MIN_OFFSET = 31;
    static final int VIEW = 33;
    static final int CONSUMER_OFFSETS = 43;
    static final int DELAY_OFFSETS = 45;
    static final int GROUPS = 201;
    private static final long PATIENCE_MS = 20_000;

    private final NettyRemotingClient client = new NettyRemotingClient(new NettyClientConfig());
    private final String address;

    Wire(Server server) {
        address = server.address();
        client.start();
    }

    /** {@code fields} are names and values in turn. */
    RemotingCommand ask(int code, Object... fields) throws Exception {
        RemotingCommand request = RemotingCommand.createRequestCommand(code, null);
        Map<String, String> named = new HashMap<>();
        for (int i = 0; i < fields.length; i += 2) {
            named.put((String) fields[i], String.valueOf(fields[i + 1]));
        }
        request.setExtFields((HashMap<String, String>) named);
        return client.invokeSync(address, request, PATIENCE_MS);
    }

    long number(int code, String topic, int queue) throws Exception {
        RemotingCommand answer = ask(code, "topic", topic, "queueId", queue, "committed", true);
        // 5.3.3 answers with an error for a queue that does not exist.
        return answer.getCode() == 0 ? Long.parseLong(answer.getExtFields().get("offset")) : 0;
    }

    JSONObject json(int code) throws Exception {
        RemotingCommand answer = ask(code);
        if (answer.getCode() != 0) {
            throw new AssertionError(code + ": " + answer);
        }
        return JSON.parseObject(new String(answer.getBody(), StandardCharsets.UTF_8));
    }

    @Override
    public void close() {
        client.shutdown();
    }
}
