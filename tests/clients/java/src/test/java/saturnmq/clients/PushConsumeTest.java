package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static saturnmq.clients.Clients.message;
import static saturnmq.clients.Clients.stored;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Test;

/** Push consumers: each message once, in order where promised, to all where promised. */
class PushConsumeTest {
    @Test
    void concurrentConsumerGetsEveryMessageOnce() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("concurrent", 4);
            List<String> before = Clients.seed(topic, "t", "before", 100);
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique("concurrent"), topic, "*", inbox);
            inbox.await(100);
            List<String> after = Clients.seed(topic, "t", "after", 100);
            inbox.await(200);
            List<String> wanted = new ArrayList<>(before);
            wanted.addAll(after);
            List<String> got = inbox.bodies();
            assertEquals(200, got.size(), "duplicates");
            assertEquals(new HashSet<>(wanted), new HashSet<>(got));
        }
    }

    @Test
    void waitingConsumerIsServedAtOnce() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("long-poll", 1);
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique("long-poll"), topic, "*", inbox);
            Clients.seed(topic, "t", "warm", 1);
            inbox.await(1);
            List<Long> took = new ArrayList<>();
            for (int i = 0; i < 9; i++) {
                long sent = System.nanoTime();
                Clients.seed(topic, "t", "prompt-" + i, 1);
                inbox.await(2 + i);
                took.add((System.nanoTime() - sent) / 1_000_000);
            }
            // A machine that stands still delays one or two.
            took.sort(null);
            assertTrue(took.get(6) < 3_000, "parked pulls were answered after " + took + " ms");
        }
    }

    @Test
    void orderlyConsumerSeesEachQueueInOrder() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("orderly", 4);
            for (int i = 0; i < 100; i++) {
                stored(Cluster.producer().send(message(topic, "t", Integer.toString(i)),
                    (queues, message, order) -> queues.get((Integer) order % queues.size()), i));
            }
            Inbox inbox = new Inbox();
            Map<Integer, AtomicInteger> inside = new ConcurrentHashMap<>();
            ConcurrentLinkedQueue<String> overlaps = new ConcurrentLinkedQueue<>();
            DefaultMQPushConsumer consumer = clients.push(Cluster.unique("orderly"));
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                int queue = context.getMessageQueue().getQueueId();
                AtomicInteger running = inside.computeIfAbsent(queue, q -> new AtomicInteger());
                if (running.incrementAndGet() > 1) {
                    overlaps.add("queue " + queue);
                }
                inbox.add(messages);
                running.decrementAndGet();
                return ConsumeOrderlyStatus.SUCCESS;
            });
            consumer.start();
            inbox.await(100, java.time.Duration.ofSeconds(60));
            assertTrue(overlaps.isEmpty(), "consumed concurrently: " + overlaps);
            Map<Integer, Integer> last = new ConcurrentHashMap<>();
            for (MessageExt message : inbox.messages()) {
                int number = Integer.parseInt(Inbox.body(message));
                int expected = last.getOrDefault(message.getQueueId(), number % 4 - 4) + 4;
                assertEquals(expected, number, "order of queue " + message.getQueueId());
                last.put(message.getQueueId(), number);
            }
        }
    }

    @Test
    void tagExpressionSelectsMessages() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("tags", 2);
            Inbox early = new Inbox();
            clients.push(Cluster.unique("tags-early"), topic, "red || green", early);
            List<String> wanted = new ArrayList<>();
            for (String tag : List.of("red", "blue", "green", "reddish")) {
                List<String> bodies = Clients.seed(topic, tag, tag, 10);
                if (tag.equals("red") || tag.equals("green")) {
                    wanted.addAll(bodies);
                }
            }
            Inbox late = new Inbox();
            clients.push(Cluster.unique("tags-late"), topic, "red || green", late);
            early.await(20);
            late.await(20);
            assertEquals(new HashSet<>(wanted), new HashSet<>(early.bodies()));
            assertEquals(new HashSet<>(wanted), new HashSet<>(late.bodies()));
            assertEquals(20, early.size());
            assertEquals(20, late.size());
        }
    }

    @Test
    void everyBroadcastMemberGetsAllMessages() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("broadcast", 4);
            String group = Cluster.unique("broadcast");
            List<Inbox> inboxes = List.of(new Inbox(), new Inbox());
            for (Inbox inbox : inboxes) {
                DefaultMQPushConsumer member = clients.push(group);
                Clients.broadcast(member);
                member.subscribe(topic, "*");
                member.registerMessageListener(Clients.into(inbox));
                member.start();
            }
            List<String> wanted = Clients.seed(topic, "t", "to-all", 60);
            for (Inbox inbox : inboxes) {
                inbox.await(60);
                assertEquals(60, inbox.size(), "duplicates");
                assertEquals(new HashSet<>(wanted), new HashSet<>(inbox.bodies()));
            }
        }
    }
}
