package saturnmq.store;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Real clients that write everything a store can hold. */
final class Load {
    static final String DELAYED = "Delayed";
    static final String WORKERS = "workers";
    static final String TRANSACTIONS = "Transactions";
    static final String PLAIN = "Plain";
    static final String PRODUCERS = "transactions";
    private static final String NOTHING = "nothing";
    private static final String FAILING = "Failing";
    private static final String RETRIED = "Retried";
    private static final String RETRYING = "retrying";
    private static final String DELAYS = "SCHEDULE_TOPIC_XXXX";
    private static final String[] TAGS = {"TagA", "TagB", "标签A", "Tag😀", null};
    private static final AtomicInteger INSTANCES = new AtomicInteger();

    private final Server server;
    private final Ledger ledger;

    Load(Server server, Ledger ledger) {
        this.server = server;
        this.ledger = ledger;
    }

    <C extends ClientConfig> C configured(C client) {
        client.setNamesrvAddr(server.nameServer());
        client.setInstanceName("load-" + INSTANCES.incrementAndGet());
        client.setPollNameServerInterval(1_000);
        client.setHeartbeatBrokerInterval(1_000);
        client.setPersistConsumerOffsetInterval(200);
        client.setVipChannelEnabled(false);
        client.setMqClientApiTimeout(20_000);
        return client;
    }

    private DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = configured(new DefaultMQProducer("load"));
        producer.setSendMsgTimeout(10_000);
        producer.start();
        return producer;
    }

    /** Some of everything. {@code round} makes bodies and keys its own. */
    void everything(String round) throws Exception {
        DefaultMQProducer producer = producer();
        try {
            plain(producer, round, 130);
            batches(producer, round);
            large(producer, round, 60);
            delayed(producer, round, 3, 5);
            failing(producer, round);
            transactions(round, 2);
            resume(WORKERS);
            settings();
        } finally {
            producer.shutdown();
        }
    }

    /** A topic and a group that are not as they come; snapshots hold them. */
    private void settings() throws Exception {
        String group = "{\"groupName\":\"settings\",\"consumeEnable\":false,"
            + "\"consumeBroadcastEnable\":false,\"retryQueueNums\":3,\"retryMaxTimes\":7}";
        try (Wire wire = new Wire(server)) {
            assertEquals(0, wire.ask(Wire.UPDATE_TOPIC, "topic", "Settings", "defaultTopic",
                "TBW102", "readQueueNums", 3, "writeQueueNums", 2, "perm", 4, "topicFilterType",
                "SINGLE_TAG", "topicSysFlag", 0, "order", true).getCode());
            assertEquals(0, wire.askWith(group.getBytes(StandardCharsets.UTF_8),
                Wire.UPDATE_GROUP).getCode());
        }
    }

    /** Little enough to do again and again. */
    void some(String round) throws Exception {
        DefaultMQProducer producer = producer();
        try {
            plain(producer, round, 40);
            batches(producer, round);
            delayed(producer, round, 3, 1);
        } finally {
            producer.shutdown();
        }
    }

    /** One message, under a key, as compacted topics need it. */
    void one(String topic) throws Exception {
        DefaultMQProducer producer = producer();
        try {
            send(producer, new Message(topic, "TagA", "only", new byte[] {1}));
        } finally {
            producer.shutdown();
        }
    }

    /** Leaves {@code pending} transactions open and ends one, which is visible at once. */
    void transactions(String round, int pending) throws Exception {
        TransactionMQProducer producer = transactional(LocalTransactionState.UNKNOW);
        for (int i = 0; i < pending; i++) {
            producer.sendMessageInTransaction(new Message(TRANSACTIONS, "TagA",
                "pending-" + round + "-" + i, new byte[] {1}), LocalTransactionState.UNKNOW);
        }
        producer.sendMessageInTransaction(new Message(TRANSACTIONS, "TagA", "ended-" + round,
            new byte[] {2}), LocalTransactionState.COMMIT_MESSAGE);
        producer.shutdown();
    }

    /** Sends a half message that nobody ends. */
    void half(String key) throws Exception {
        TransactionMQProducer producer = transactional(LocalTransactionState.UNKNOW);
        try {
            producer.sendMessageInTransaction(new Message(TRANSACTIONS, "TagA", key,
                new byte[] {4}), LocalTransactionState.UNKNOW);
        } finally {
            producer.shutdown();
        }
    }

    /** Answers the broker's questions until {@code done} holds: everything is to be delivered. */
    void answer(Callable<Boolean> done) throws Exception {
        TransactionMQProducer producer = transactional(LocalTransactionState.COMMIT_MESSAGE);
        // Brokers ask only producers that they know, and a producer tells only brokers it sent to.
        producer.sendMessageInTransaction(new Message(TRANSACTIONS, "TagA", NOTHING,
            new byte[] {3}), LocalTransactionState.ROLLBACK_MESSAGE);
        Await.until("transactions that a check ended", done);
        producer.shutdown();
    }

    private TransactionMQProducer transactional(LocalTransactionState asked) throws Exception {
        TransactionMQProducer producer = configured(new TransactionMQProducer(PRODUCERS));
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return NOTHING.equals(message.getKeys())
                    ? LocalTransactionState.ROLLBACK_MESSAGE : asked;
            }
        });
        producer.start();
        return producer;
    }

    /** Enough for several log files. */
    void large(int count) throws Exception {
        DefaultMQProducer producer = producer();
        try {
            large(producer, "only", count);
        } finally {
            producer.shutdown();
        }
    }

    /** Messages that become due soon; see {@link Settings#DELAY_LEVELS}. */
    void dueSoon(String round, int count) throws Exception {
        DefaultMQProducer producer = producer();
        try {
            delayed(producer, round, 2, count);
        } finally {
            producer.shutdown();
        }
    }

    private void send(DefaultMQProducer producer, Message message) throws Exception {
        ledger.add(producer.send(message), message);
    }

    private void plain(DefaultMQProducer producer, String round, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            Message message = new Message(PLAIN, TAGS[i % TAGS.length],
                ("Grüße, 世界, " + round + "-" + i).getBytes(StandardCharsets.UTF_8));
            message.setKeys("key-" + round + "-" + i + " shared-" + round + "-" + i / 10
                + " ключ-" + i);
            message.setFlag(i);
            message.putUserProperty("größe", "värde-" + i);
            send(producer, message);
        }
    }

    private void batches(DefaultMQProducer producer, String round) throws Exception {
        for (int batch = 0; batch < 10; batch++) {
            List<Message> messages = new ArrayList<>();
            for (int i = 0; i <= batch; i++) {
                Message message = new Message("Batch", "TagA",
                    (round + "-" + batch + "-" + i).getBytes(StandardCharsets.UTF_8));
                message.setKeys("batch-" + round + "-" + batch + "-" + i);
                messages.add(message);
            }
            ledger.add(producer.send(messages), messages.toArray(new Message[0]));
        }
    }

    /** Bodies that the client compresses, some of which get no smaller. */
    private void large(DefaultMQProducer producer, String round, int count) throws Exception {
        Random random = new Random(round.hashCode());
        for (int i = 0; i < count; i++) {
            byte[] body = new byte[4_000 + random.nextInt(60_000)];
            if (i % 2 == 0) {
                random.nextBytes(body);
            }
            send(producer, new Message("Large", "TagB", "large-" + round + "-" + i, body));
        }
    }

    private void delayed(DefaultMQProducer producer, String round, int level, int count)
        throws Exception {
        for (int i = 0; i < count; i++) {
            Message message = new Message(DELAYED, "TagA", "delayed-" + round + "-" + i,
                ("level " + level + " " + round).getBytes(StandardCharsets.UTF_8));
            message.setDelayTimeLevel(level);
            send(producer, message);
        }
    }

    private DefaultMQPushConsumer consumer(String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = configured(new DefaultMQPushConsumer(group));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(5);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    /**
     * Makes a group's retry topic. A consumer that starts without it finds it only at one of its
     * 20-second rounds.
     */
    private void makeKnown(String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = consumer(group, topic);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            ConsumeConcurrentlyStatus.RECONSUME_LATER);
        consumer.suspend();
        consumer.start();
        Await.until("retry topic of " + group, () -> !consumer
            .fetchSubscribeMessageQueues("%RETRY%" + group).isEmpty());
        consumer.shutdown();
    }

    /** One message comes again, one waits for its retry, one is dead. */
    private void failing(DefaultMQProducer producer, String round) throws Exception {
        for (String what : new String[] {"again", "later", "dead"}) {
            send(producer, new Message(FAILING, "TagA", what + "-" + round,
                what.getBytes(StandardCharsets.UTF_8)));
        }
        Set<String> done = ConcurrentHashMap.newKeySet();
        makeKnown("failing", FAILING);
        DefaultMQPushConsumer consumer = consumer("failing", FAILING);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            String what = new String(message.getBody(), StandardCharsets.UTF_8);
            boolean first = message.getReconsumeTimes() == 0;
            context.setDelayLevelWhenNextConsume(
                what.equals("again") ? 1 : what.equals("later") ? 3 : -1);
            if (!first || !what.equals("again")) {
                done.add(what);
            }
            return first ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Await.until("failing messages, and not " + done, () -> done.size() == 3);
        consumer.shutdown();
        try (Wire wire = new Wire(server)) {
            // Dead letters can be read by nobody at first.
            Await.until("a dead letter", () -> wire.number(Wire.MAX_OFFSET, "%DLQ%failing", 0) > 0);
            int code = wire.ask(Wire.UPDATE_TOPIC, "topic", "%DLQ%failing", "defaultTopic",
                "TBW102", "readQueueNums", 1, "writeQueueNums", 1, "perm", 6, "topicFilterType",
                "SINGLE_TAG", "topicSysFlag", 0, "order", false).getCode();
            assertEquals(0, code);
        }
    }

    /** Consumes with a group where it stopped; returns the names of what it was given. */
    Set<String> resume(String group) throws Exception {
        Set<String> got = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = consumer(group, PLAIN);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> got.add(message.getTopic() + "/" + message.getQueueId()
                + "/" + message.getQueueOffset()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        try (Wire wire = new Wire(server)) {
            long left = left(wire, group, PLAIN);
            consumer.start();
            Await.until(left + " messages for " + group, () -> got.size() >= left);
            // Says at once how far it has come.
            consumer.shutdown();
            Await.until(group + " is done", () -> left(wire, group, PLAIN) == 0);
        }
        return got;
    }

    /** One message for {@link #retry}. */
    void retried(String key) throws Exception {
        DefaultMQProducer producer = producer();
        try {
            send(producer, new Message(RETRIED, "TagA", key, key.getBytes(StandardCharsets.UTF_8)));
            makeKnown(RETRYING, RETRIED);
        } finally {
            producer.shutdown();
        }
    }

    /**
     * Consumes until {@code count} messages have come, which are done with or come again 8 seconds
     * later; returns the keys and attempts they had.
     */
    List<String> retry(int count, boolean again) throws Exception {
        List<String> got = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = consumer(RETRYING, RETRIED);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            context.setDelayLevelWhenNextConsume(2);
            got.add(message.getKeys() + " " + message.getReconsumeTimes());
            return again ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        try (Wire wire = new Wire(server)) {
            long waiting = wire.number(Wire.MAX_OFFSET, DELAYS, 1);
            consumer.start();
            Await.until(count + " messages, and not " + got, () -> got.size() >= count);
            long wait = again ? waiting + count : waiting;
            Await.until("retries", () -> wire.number(Wire.MAX_OFFSET, DELAYS, 1) >= wait);
            // What a consumer is not done with when it stops comes again.
            Await.until("progress", () -> {
                consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
                return left(wire, RETRYING, RETRIED) == 0
                    && left(wire, RETRYING, "%RETRY%" + RETRYING) == 0;
            });
        }
        consumer.shutdown();
        return got;
    }

    /** Messages of a topic that a group is not done with. */
    static long left(Wire wire, String group, String topic) throws Exception {
        var offsets = wire.json(Wire.CONSUMER_OFFSETS).getJSONObject("offsetTable")
            .getJSONObject(topic + "@" + group);
        long left = 0;
        for (int queue = 0; queue < 4; queue++) {
            Long offset = offsets == null ? null : offsets.getLong(Integer.toString(queue));
            left += wire.number(Wire.MAX_OFFSET, topic, queue) - (offset == null ? 0 : offset);
        }
        return left;
    }

    /** Sends from several threads until sends fail, because the broker was killed. */
    Thread[] untilKilled(int threads) throws Exception {
        Thread[] running = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            DefaultMQProducer producer = producer();
            producer.setRetryTimesWhenSendFailed(0);
            running[i] = new Thread(() -> keepSending(producer));
            running[i].start();
        }
        return running;
    }

    private void keepSending(DefaultMQProducer producer) {
        Random random = new Random();
        try {
            while (true) {
                byte[] body = new byte[random.nextInt(3_000)];
                random.nextBytes(body);
                Message message = new Message("Hurried", "TagA", "hurried", body);
                producer.setSendMsgTimeout(3_000);
                send(producer, message);
            }
        } catch (Exception killed) {
            producer.shutdown();
        }
    }
}
