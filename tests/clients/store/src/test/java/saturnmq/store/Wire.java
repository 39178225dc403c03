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
    static final int SEND = 10;
    static final int PULL = 11;
    static final int QUERY = 12;
    static final int TOPICS = 21;
    static final int OFFSET_BY_TIME = 29;
    static final int MAX_OFFSET = 30;
    static final int MIN_OFFSET = 31;
    static final int RUNTIME_INFORMATION = 28;
    static final int VIEW = 33;
    static final int END_TRANSACTION = 37;
    static final int CONSUMER_OFFSETS = 43;
    static final int DELAY_OFFSETS = 45;
    static final int TIMER_CHECK = 60;
    static final int TIMER_NUMBERS = 61;
    static final int UPDATE_GROUP = 200;
    static final int GROUPS = 201;
    static final int CONSUMERS_OF = 203;
    static final int PRODUCERS_OF = 204;
    static final int EXPORT_STATE = 355;
    static final int RECALL = 370;
    private static final int STATIC_TOPIC = 513;
    private static final long PATIENCE_MS = 20_000;

    private final NettyRemotingClient client = new NettyRemotingClient(new NettyClientConfig());
    private final String address;

    Wire(Server server) {
        address = server.address();
        client.start();
    }

    /** {@code fields} are names and values in turn. */
    RemotingCommand ask(int code, Object... fields) throws Exception {
        return askWith(null, code, fields);
    }

    RemotingCommand askWith(byte[] body, int code, Object... fields) throws Exception {
        RemotingCommand request = RemotingCommand.createRequestCommand(code, null);
        Map<String, String> named = new HashMap<>();
        for (int i = 0; i < fields.length; i += 2) {
            named.put((String) fields[i], String.valueOf(fields[i + 1]));
        }
        request.setExtFields((HashMap<String, String>) named);
        request.setBody(body);
        return client.invokeSync(address, request, PATIENCE_MS);
    }

    /** A topic of one queue whose place is fixed for the cluster; 5.x only. */
    void makeStatic(String topic) throws Exception {
        RemotingCommand request = RemotingCommand.createRequestCommand(STATIC_TOPIC, null);
        Map<String, String> named = new HashMap<>(Map.of("topic", topic, "defaultTopic", "TBW102",
            "readQueueNums", "1", "writeQueueNums", "1", "perm", "6", "topicFilterType",
            "SINGLE_TAG", "topicSysFlag", "0", "order", "false"));
        request.setExtFields((HashMap<String, String>) named);
        String queue = "{\"gen\":0,\"queueId\":0,\"bname\":\"" + Settings.BROKER_NAME
            + "\",\"logicOffset\":0,\"startOffset\":0,\"endOffset\":-1,\"timeOfStart\":-1,"
            + "\"timeOfEnd\":-1}";
        request.setBody(("{\"topic\":\"" + topic + "\",\"scope\":\"__global__\",\"totalQueues\":1,"
            + "\"bname\":\"" + Settings.BROKER_NAME + "\",\"epoch\":1700000000000,\"dirty\":false,"
            + "\"hostedQueues\":{\"0\":[" + queue + "]}}").getBytes(StandardCharsets.UTF_8));
        RemotingCommand answer = client.invokeSync(address, request, PATIENCE_MS);
        if (answer.getCode() != 0) {
            throw new AssertionError("static topic: " + answer);
        }
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
