package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;

/** What a monitor of 4.9 reads about consumers that asked for offsets that are not there. */
class OffsetMovedTest {
    private static final String EVENTS = "OFFSET_MOVED_EVENT";

    // Brokers of 5.x store no such events, and clients of 5.x get none from this one.
    @EnabledIfSystemProperty(named = "rocketmq.version", matches = "4\\..*")
    @Test
    void aPullThatIsSentElsewhereIsToldOf() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("moved", 1);
            String group = Cluster.unique("moved");
            MessageQueue queue = Cluster.queues(topic).get(0);
            Clients.seed(topic, "t", "m", 3);
            Cluster.awaitStored(topic, 3);
            DefaultMQPullConsumer consumer = clients.pull(group);
            PullResult moved = consumer.pull(queue, "*", 25, 8);
            assertEquals(PullStatus.OFFSET_ILLEGAL, moved.getPullStatus());
            assertEquals(3, moved.getNextBeginOffset());
            MessageQueue first = new MessageQueue(EVENTS, queue.getBrokerName(), 0);
            DefaultMQPullConsumer monitor = clients.pull(Cluster.unique("monitor"));
            MessageExt[] found = new MessageExt[1];
            Await.until("the event", () -> {
                List<MessageExt> events = Cluster.admin().queryMessage(EVENTS, group, 8, 0,
                    Long.MAX_VALUE).getMessageList();
                found[0] = events.get(0);
                return events.size() == 1;
            });
            MessageExt event = found[0];
            assertEquals(group, event.getTags());
            String body = Inbox.body(event);
            for (String part : List.of("\"consumerGroup\":\"" + group + "\"",
                "\"topic\":\"" + topic + "\"", "\"offsetRequest\":25", "\"offsetNew\":3")) {
                assertTrue(body.contains(part), body);
            }
            List<String> tags = monitor.pull(first, group, event.getQueueOffset(), 8)
                .getMsgFoundList().stream().map(MessageExt::getTags).collect(Collectors.toList());
            assertEquals(List.of(group), tags);
        }
    }
}
