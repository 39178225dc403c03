package saturnmq.clients;

import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** The clients of one test; all are shut down when the test ends. */
final class Clients implements AutoCloseable {
    /** Retry topics appear while a consumer runs: look for routes more often than every 30 s. */
    private static final int ROUTE_POLL_MS = 1_000;
    /** The client can skip the heartbeat of a new subscription; the next one mends it. */
    private static final int HEARTBEAT_MS = 1_000;
    private static final int COMMIT_MS = 500;
    private static final AtomicInteger INSTANCES = new AtomicInteger();

    private final Deque<Runnable> shutdowns = new ArrayDeque<>();

    /** Not shut down by {@link #close}: that is for whoever starts it. */
    <C extends ClientConfig> C configured(C client) {
        client.setNamesrvAddr(Cluster.NAME_SERVER);
        client.setInstanceName(Cluster.unique("i" + INSTANCES.incrementAndGet()));
        client.setPollNameServerInterval(ROUTE_POLL_MS);
        client.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        client.setPersistConsumerOffsetInterval(COMMIT_MS);
        return client;
    }

    DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer producer = configured(new DefaultMQProducer(group));
        producer.setSendMsgTimeout(10_000);
        producer.start();
        shutdowns.push(producer::shutdown);
        return producer;
    }

    DefaultMQProducer inNamespace(String namespace, String group) throws Exception {
        DefaultMQProducer producer = configured(new DefaultMQProducer(Cluster.unique(group)));
        producer.setNamespace(namespace);
        producer.start();
        shutdowns.push(producer::shutdown);
        return producer;
    }

    TransactionMQProducer transactionProducer(String group) {
        TransactionMQProducer producer = configured(new TransactionMQProducer(group));
        producer.setSendMsgTimeout(10_000);
        shutdowns.push(producer::shutdown);
        return producer;
    }

    /** Not started: the test subscribes and chooses the listener. */
    DefaultMQPushConsumer push(String group) {
        DefaultMQPushConsumer consumer = configured(new DefaultMQPushConsumer(group));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        shutdowns.push(consumer::shutdown);
        return consumer;
    }

    /** Started, every message goes to the inbox and is acknowledged. */
    DefaultMQPushConsumer push(String group, String topic, String expression, Inbox inbox)
        throws Exception {
        DefaultMQPushConsumer consumer = push(group);
        consumer.subscribe(topic, expression);
        consumer.registerMessageListener(into(inbox));
        consumer.start();
        return consumer;
    }

    DefaultMQPullConsumer pull(String group, String... topics) throws Exception {
        DefaultMQPullConsumer consumer = configured(new DefaultMQPullConsumer(group));
        consumer.setRegisterTopics(Set.of(topics));
        consumer.start();
        shutdowns.push(consumer::shutdown);
        return consumer;
    }

    /** Not started. */
    DefaultLitePullConsumer litePull(String group) {
        DefaultLitePullConsumer consumer = configured(new DefaultLitePullConsumer(group));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        shutdowns.push(consumer::shutdown);
        return consumer;
    }

    @Override
    public void close() {
        while (!shutdowns.isEmpty()) {
            shutdowns.pop().run();
        }
    }

    static MessageListenerConcurrently into(Inbox inbox) {
        return (messages, context) -> {
            inbox.add(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    /** The enum moved to another package between the client releases. */
    static void broadcast(DefaultMQPushConsumer consumer) throws Exception {
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                for (Object model : method.getParameterTypes()[0].getEnumConstants()) {
                    if (model.toString().equals("BROADCASTING")) {
                        method.invoke(consumer, model);
                        return;
                    }
                }
            }
        }
        throw new AssertionError("no setMessageModel");
    }

    static Message message(String topic, String tag, String body) {
        return new Message(topic, tag, body.getBytes(StandardCharsets.UTF_8));
    }

    /** Sends {@code count} messages named prefix-0, prefix-1, … and returns their bodies. */
    static List<String> seed(String topic, String tag, String prefix, int count) throws Exception {
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            String body = prefix + "-" + i;
            stored(Cluster.producer().send(message(topic, tag, body)));
            bodies.add(body);
        }
        return bodies;
    }

    /** Fails unless the broker has accepted the message. */
    static SendResult stored(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new AssertionError("send status " + result);
        }
        return result;
    }
}
