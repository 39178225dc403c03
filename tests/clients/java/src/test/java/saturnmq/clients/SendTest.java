package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static saturnmq.clients.Clients.message;
import static saturnmq.clients.Clients.stored;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;

/** Every way to send, and what is stored then. */
class SendTest {
    /** Reads a queue of {@code count} messages from its start. */
    private static List<MessageExt> readAll(Clients clients, MessageQueue queue, int count)
        throws Exception {
        DefaultMQPullConsumer consumer = clients.pull(Cluster.unique("read-" + queue.hashCode()));
        Await.until("messages of " + queue, () -> Cluster.admin().maxOffset(queue) == count);
        List<MessageExt> all = new ArrayList<>();
        for (long offset = 0; offset < count; ) {
            PullResult result = consumer.pull(queue, "*", offset, 32);
            if (result.getPullStatus() == PullStatus.FOUND) {
                all.addAll(result.getMsgFoundList());
            }
            assertTrue(result.getNextBeginOffset() > offset, result.toString());
            offset = result.getNextBeginOffset();
        }
        return all;
    }

    private static MessageQueue onlyQueue(String topic) throws Exception {
        return Cluster.queues(topic).iterator().next();
    }

    @Test
    void syncSendsToOneQueueGetConsecutiveOffsets() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("sync", 1);
            DefaultMQProducer producer = clients.producer(Cluster.unique("sync"));
            for (int i = 0; i < 5; i++) {
                SendResult result = stored(producer.send(message(topic, "t", "sync-" + i)));
                assertEquals(i, result.getQueueOffset());
                assertEquals(topic, result.getMessageQueue().getTopic());
                assertFalse(result.getMsgId().isEmpty());
                assertEquals(32, result.getOffsetMsgId().length());
            }
            Cluster.awaitStored(topic, 5);
        }
    }

    @Test
    void asyncSendsAllCallBackWithDistinctPlaces() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("async", 4);
            DefaultMQProducer producer = clients.producer(Cluster.unique("async"));
            int count = 200;
            CountDownLatch done = new CountDownLatch(count);
            ConcurrentLinkedQueue<String> places = new ConcurrentLinkedQueue<>();
            ConcurrentLinkedQueue<Throwable> failures = new ConcurrentLinkedQueue<>();
            for (int i = 0; i < count; i++) {
                producer.send(message(topic, "t", "async-" + i), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        int queue = result.getMessageQueue().getQueueId();
                        places.add(queue + "/" + result.getQueueOffset());
                        done.countDown();
                    }

                    @Override
                    public void onException(Throwable failure) {
                        failures.add(failure);
                        done.countDown();
                    }
                });
            }
            assertTrue(done.await(30, TimeUnit.SECONDS), done.getCount() + " callbacks missing");
            assertTrue(failures.isEmpty(), failures.toString());
            assertEquals(count, places.stream().distinct().count());
            Cluster.awaitStored(topic, count);
        }
    }

    @Test
    void oneWaySendsAreStored() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("oneway", 4);
            DefaultMQProducer producer = clients.producer(Cluster.unique("oneway"));
            for (int i = 0; i < 50; i++) {
                producer.sendOneway(message(topic, "t", "oneway-" + i));
            }
            Cluster.awaitStored(topic, 50);
        }
    }

    @Test
    void batchIsStoredAsSeparateMessagesInOrder() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("batch", 1);
            DefaultMQProducer producer = clients.producer(Cluster.unique("batch"));
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < 20; i++) {
                Message one = message(topic, "tag" + i % 2, "batch-" + i);
                one.putUserProperty("number", Integer.toString(i));
                batch.add(one);
            }
            SendResult result = stored(producer.send(batch));
            assertEquals(20, result.getMsgId().split(",").length);
            List<MessageExt> read = readAll(clients, onlyQueue(topic), 20);
            assertEquals(20, read.size());
            for (int i = 0; i < 20; i++) {
                assertEquals("batch-" + i, Inbox.body(read.get(i)));
                assertEquals("tag" + i % 2, read.get(i).getTags());
                assertEquals(Integer.toString(i), read.get(i).getUserProperty("number"));
                assertEquals(i, read.get(i).getQueueOffset());
            }
        }
    }

    @Test
    void selectorChoosesTheQueue() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("selector", 4);
            DefaultMQProducer producer = clients.producer(Cluster.unique("selector"));
            for (int i = 0; i < 12; i++) {
                SendResult result = stored(producer.send(message(topic, "t", "selected-" + i),
                    (queues, message, order) -> queues.get((Integer) order % queues.size()), i));
                assertEquals(i % 4, result.getMessageQueue().getQueueId());
                assertEquals(i / 4, result.getQueueOffset());
            }
            for (MessageQueue queue : Cluster.queues(topic)) {
                List<String> bodies = readAll(clients, queue, 3).stream()
                    .map(Inbox::body).collect(Collectors.toList());
                int id = queue.getQueueId();
                assertEquals(List.of("selected-" + id, "selected-" + (id + 4),
                    "selected-" + (id + 8)), bodies);
            }
        }
    }

    @Test
    void largeBodyIsStoredCompressedAndReadBackWhole() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("compressed", 1);
            DefaultMQProducer producer = clients.producer(Cluster.unique("compressed"));
            byte[] text = "all work and no play makes a dull message. ".repeat(2_500)
                .getBytes(StandardCharsets.UTF_8);
            byte[] noise = new byte[300_000];
            new Random(7).nextBytes(noise);
            stored(producer.send(new Message(topic, text)));
            stored(producer.send(new Message(topic, noise)));
            List<MessageExt> read = readAll(clients, onlyQueue(topic), 2);
            assertArrayEquals(text, read.get(0).getBody());
            assertTrue(read.get(0).getStoreSize() < text.length / 10, "not stored compressed");
            assertArrayEquals(noise, read.get(1).getBody());
        }
    }

    @Test
    void propertiesKeysTagsAndFlagArriveUnchanged() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("properties", 1);
            DefaultMQProducer producer = clients.producer(Cluster.unique("properties"));
            Message sent = message(topic, "Ünïcode", "körper ✓");
            sent.setKeys(List.of("one", "two"));
            sent.setFlag(77);
            sent.putUserProperty("colour", "grün {\"quoted\":true}");
            SendResult result = stored(producer.send(sent));
            MessageExt read = readAll(clients, onlyQueue(topic), 1).get(0);
            assertEquals("körper ✓", Inbox.body(read));
            assertEquals("Ünïcode", read.getTags());
            assertEquals("one two", read.getKeys());
            assertEquals(77, read.getFlag());
            assertEquals("grün {\"quoted\":true}", read.getUserProperty("colour"));
            assertEquals(result.getMsgId(), read.getMsgId());
            assertTrue(read.getStoreTimestamp() >= read.getBornTimestamp() - 1_000);
        }
    }

    @Test
    void firstSendCreatesTheTopic() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.unique("created-by-send");
            DefaultMQProducer producer = clients.producer(Cluster.unique("created-by-send"));
            stored(producer.send(message(topic, "t", "first")));
            Await.until("route of " + topic, () ->
                Cluster.queues(topic).size() == 4);
            Cluster.awaitStored(topic, 1);
        }
    }
}
