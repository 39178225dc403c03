package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;

/** Three members share eight queues by each of the client's rules: all see the same members. */
class AllocationTest {
    private static final int QUEUES = 8;
    private static final int MEMBERS = 3;

    /** The rule of a member, by its number. */
    private interface Rule {
        AllocateMessageQueueStrategy of(int member, List<MessageQueue> queues);
    }

    private static Set<Integer> owned(DefaultMQPushConsumer member, String topic) {
        return member.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable()
            .keySet().stream().filter(queue -> queue.getTopic().equals(topic))
            .map(MessageQueue::getQueueId).collect(Collectors.toCollection(TreeSet::new));
    }

    /** What the rule gives this member when it knows all of them. */
    private static Set<Integer> due(DefaultMQPushConsumer member, List<MessageQueue> queues,
                                    List<String> ids) {
        return member.getAllocateMessageQueueStrategy()
            .allocate(member.getConsumerGroup(), idOf(member), queues, ids).stream()
            .map(MessageQueue::getQueueId).collect(Collectors.toCollection(TreeSet::new));
    }

    private static String idOf(DefaultMQPushConsumer member) {
        return member.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
    }

    /** What each member owns once all own what the rule gives them and all messages have come. */
    private static List<Set<Integer>> shared(String what, Rule rule) throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic(what, QUEUES);
            List<MessageQueue> queues = new ArrayList<>(Cluster.queues(topic));
            Inbox inbox = new Inbox();
            List<DefaultMQPushConsumer> members = new ArrayList<>();
            for (int i = 0; i < MEMBERS; i++) {
                DefaultMQPushConsumer member = clients.push(Cluster.unique(what));
                // Shares go by the order of the client ids.
                member.setInstanceName(Cluster.unique(what + "-member" + i));
                member.setAllocateMessageQueueStrategy(rule.of(i, queues));
                member.subscribe(topic, "*");
                member.registerMessageListener(Clients.into(inbox));
                member.start();
                members.add(member);
            }
            Collections.sort(queues);
            List<String> ids = members.stream().map(AllocationTest::idOf).sorted()
                .collect(Collectors.toList());
            List<Set<Integer>> shares = members.stream().map(member -> due(member, queues, ids))
                .collect(Collectors.toList());
            Await.until("what the rule gives to three members: " + shares, () ->
                members.stream().map(member -> owned(member, topic)).collect(Collectors.toList())
                    .equals(shares));
            assertEquals(QUEUES, shares.stream().mapToInt(Set::size).sum());
            assertEquals(QUEUES, shares.stream().flatMap(Set::stream).distinct().count());
            Set<String> sent = new TreeSet<>(Clients.seed(topic, "t", what, 40));
            inbox.await(40);
            assertEquals(sent, new TreeSet<>(inbox.bodies()));
            return shares;
        }
    }

    @Test
    void averagely() throws Exception {
        assertEquals(List.of(Set.of(0, 1, 2), Set.of(3, 4, 5), Set.of(6, 7)),
            shared("averagely", (i, queues) -> new AllocateMessageQueueAveragely()));
    }

    @Test
    void averagelyByCircle() throws Exception {
        assertEquals(List.of(Set.of(0, 3, 6), Set.of(1, 4, 7), Set.of(2, 5)),
            shared("circle", (i, queues) -> new AllocateMessageQueueAveragelyByCircle()));
    }

    @Test
    void byConfiguration() throws Exception {
        assertEquals(List.of(Set.of(0, 1), Set.of(2, 3), Set.of(4, 5, 6, 7)),
            shared("by-config", (i, queues) -> {
                AllocateMessageQueueByConfig own = new AllocateMessageQueueByConfig();
                own.setMessageQueueList(queues.stream()
                    .filter(queue -> Math.min(queue.getQueueId() / 2, MEMBERS - 1) == i)
                    .collect(Collectors.toList()));
                return own;
            }));
    }

    @Test
    void byConsistentHash() throws Exception {
        // Where the members stand on the ring depends on their ids: one may get nothing.
        shared("hash", (i, queues) -> new AllocateMessageQueueConsistentHash());
    }

    @Test
    void inTheRoomThatIsNearest() throws Exception {
        AllocateMachineRoomNearby.MachineRoomResolver rooms =
            new AllocateMachineRoomNearby.MachineRoomResolver() {
                @Override
                public String brokerDeployIn(MessageQueue queue) {
                    return "here";
                }

                @Override
                public String consumerDeployIn(String client) {
                    return "here";
                }
            };
        assertEquals(List.of(Set.of(0, 1, 2), Set.of(3, 4, 5), Set.of(6, 7)),
            shared("room", (i, queues) -> new AllocateMachineRoomNearby(
                new AllocateMessageQueueAveragely(), rooms)));
    }
}
