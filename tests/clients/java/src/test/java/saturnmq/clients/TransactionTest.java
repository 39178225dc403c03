package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Transactional messages: seen after commit, never before, never after rollback. */
class TransactionTest {
    private static final String GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC";
    private static final String WAITING = "transaction-waiting";
    private static final int WAITING_COUNT = 5;
    /** See scripts/test: the broker's transactionCheckMax. */
    private static final int CHECK_MAX = 600;

    /** Ends transactions as their tag says; remembers whom the broker asked about. */
    private static final class Decisions implements TransactionListener {
        private final List<String> asked = new ArrayList<>();

        @Override
        public LocalTransactionState executeLocalTransaction(Message sent, Object argument) {
            return state(sent.getTags());
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            synchronized (asked) {
                asked.add(Inbox.body(message));
            }
            String tag = message.getTags();
            return state(tag.startsWith("Check") ? tag.substring("Check".length()) : tag);
        }

        List<String> asked() {
            synchronized (asked) {
                return new ArrayList<>(asked);
            }
        }

        private static LocalTransactionState state(String tag) {
            switch (tag) {
                case "Commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "Rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }
    }

    private static Decisions start(TransactionMQProducer producer) throws Exception {
        Decisions decisions = new Decisions();
        producer.setTransactionListener(decisions);
        producer.start();
        // Checks go to producers that have sent a heartbeat.
        Clients.stored(producer.send(Clients.message(Cluster.createTopic("warm-up", 1), "t", "w")));
        producer.getDefaultMQProducerImpl().getMqClientFactory()
            .sendHeartbeatToAllBrokerWithLock();
        return decisions;
    }

    private static void send(TransactionMQProducer producer, String topic, String tag, String body)
        throws Exception {
        Clients.stored(
            producer.sendMessageInTransaction(Clients.message(topic, tag, body), null));
    }

    private static void sameOnce(Set<String> wanted, Inbox inbox) {
        assertEquals(wanted, new HashSet<>(inbox.bodies()));
        assertEquals(wanted.size(), inbox.size(), "duplicates: " + inbox.bodies());
    }

    @Test
    void onlyCommittedMessagesAreDelivered() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("transaction", 1);
            TransactionMQProducer producer =
                clients.transactionProducer(Cluster.unique("transaction"));
            start(producer);
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique("transaction"), topic, "*", inbox);
            Set<String> wanted = new HashSet<>();
            for (int i = 0; i < 6; i++) {
                String tag = i % 2 == 0 ? "Commit" : "Rollback";
                send(producer, topic, tag, "transaction-" + i);
                if (i % 2 == 0) {
                    wanted.add("transaction-" + i);
                }
            }
            inbox.await(wanted.size());
            wanted.addAll(Clients.seed(topic, "t", "end", 1));
            inbox.await(wanted.size());
            sameOnce(wanted, inbox);
            for (MessageExt message : inbox.messages()) {
                boolean ended = Inbox.body(message).startsWith("transaction");
                assertEquals(ended ? 8 : 0, message.getSysFlag() & 12, message.toString());
                assertEquals(ended, message.getPreparedTransactionOffset() > 0);
            }
        }
    }

    @Test
    void theBrokerAsksAboutWhatNobodyEnded() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("transaction-asked", 2);
            TransactionMQProducer producer =
                clients.transactionProducer(Cluster.unique("transaction-asked"));
            Decisions decisions = start(producer);
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique("transaction-asked"), topic, "*", inbox);
            Set<String> all = new HashSet<>();
            Set<String> wanted = new HashSet<>();
            for (int i = 0; i < 20; i++) {
                String tag = i % 2 == 0 ? "CheckCommit" : "CheckRollback";
                send(producer, topic, tag, "asked-" + i);
                all.add("asked-" + i);
                if (i % 2 == 0) {
                    wanted.add("asked-" + i);
                }
            }
            assertEquals(0, inbox.size(), "visible before the commit");
            inbox.await(wanted.size());
            Await.until("a question about each message", () ->
                new HashSet<>(decisions.asked()).equals(all));
            wanted.addAll(Clients.seed(topic, "t", "end", 1));
            inbox.await(wanted.size());
            sameOnce(wanted, inbox);
            assertEquals(all.size(), decisions.asked().size(), "asked again");
        }
    }

    @Test
    void anotherMemberOfTheGroupAnswersForOneThatIsGone() throws Exception {
        try (Clients clients = new Clients(); Clients gone = new Clients()) {
            String topic = Cluster.createTopic("transaction-heir", 1);
            String group = Cluster.unique("transaction-heir");
            TransactionMQProducer first = gone.transactionProducer(group);
            start(first);
            send(first, topic, "CheckCommit", "left");
            gone.close();
            Decisions heir = start(clients.transactionProducer(group));
            Inbox inbox = new Inbox();
            clients.push(group, topic, "*", inbox);
            inbox.await(1);
            sameOnce(Set.of("left"), inbox);
            assertEquals(List.of("left"), heir.asked());
        }
    }

    @Test
    void oneThatIsNeverEndedIsGivenUpAndCanBeTakenUpAgain() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("transaction-given-up", 1);
            TransactionMQProducer producer =
                clients.transactionProducer(Cluster.unique("transaction-given-up"));
            Decisions decisions = start(producer);
            Message message = Clients.message(topic, "Unknown", "given-up");
            int asks = 3;
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_TRANSACTION_CHECK_TIMES,
                Integer.toString(CHECK_MAX - asks));
            String id = producer.sendMessageInTransaction(message, null).getMsgId();
            DefaultMQPullConsumer pull = clients.pull(Cluster.unique("transaction-given-up"));
            MessageExt[] found = new MessageExt[1];
            Await.until("the message in " + GIVEN_UP_TOPIC, () -> {
                found[0] = givenUp(pull, id);
                return found[0] != null;
            });
            assertEquals(asks, decisions.asked().size());
            assertEquals("given-up", Inbox.body(found[0]));
            assertEquals(Integer.toString(CHECK_MAX),
                found[0].getProperty(MessageConst.PROPERTY_TRANSACTION_CHECK_TIMES));
            assertEquals(0, Cluster.stored(topic), "visible");
            assertTrue(Cluster.admin().resumeCheckHalfMessage(GIVEN_UP_TOPIC, id));
            Await.until("another question", () -> decisions.asked().size() > asks);
        }
    }

    private static MessageExt givenUp(DefaultMQPullConsumer pull, String id) throws Exception {
        Set<MessageQueue> queues;
        try {
            queues = pull.fetchSubscribeMessageQueues(GIVEN_UP_TOPIC);
        } catch (Exception notMadeYet) {
            return null;
        }
        for (MessageQueue queue : queues) {
            long offset = pull.minOffset(queue);
            long end = pull.maxOffset(queue);
            while (offset < end) {
                PullResult result = pull.pull(queue, "*", offset, 32);
                if (result.getMsgFoundList() != null) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        if (id.equals(message.getMsgId())) {
                            return message;
                        }
                    }
                }
                offset = result.getNextBeginOffset();
            }
        }
        return null;
    }

    @Test
    void beforeRestartTransactionsAreLeftOpen() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic(WAITING, 1);
            TransactionMQProducer producer =
                clients.transactionProducer(Cluster.unique(WAITING));
            producer.setTransactionListener(new Decisions());
            producer.start();
            for (int i = 0; i < WAITING_COUNT; i++) {
                send(producer, topic, "CheckCommit", "waiting-" + i);
            }
        }
    }

    @Test
    @Tag("after-restart")
    void afterRestartOpenTransactionsAreAskedAbout() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.unique(WAITING);
            Await.until("route of " + topic, () -> Cluster.queues(topic).size() > 0);
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique(WAITING), topic, "*", inbox);
            start(clients.transactionProducer(Cluster.unique(WAITING)));
            inbox.await(WAITING_COUNT);
            Set<String> wanted = new HashSet<>();
            for (int i = 0; i < WAITING_COUNT; i++) {
                wanted.add("waiting-" + i);
            }
            sameOnce(wanted, inbox);
        }
    }
}
