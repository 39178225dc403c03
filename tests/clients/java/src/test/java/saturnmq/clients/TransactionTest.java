package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.HashSet;
import java.util.Set;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Test;

/**
 * Transactional messages: seen after commit, never after rollback. A broker without them must
 * refuse the send and show nothing.
 */
class TransactionTest {
    private static final int MESSAGE_ILLEGAL = 13;

    /** Whether the broker took the message. Fails on any answer but a plain refusal. */
    private static boolean accepted(TransactionMQProducer producer, Message message, boolean commit)
        throws Exception {
        try {
            Clients.stored(producer.sendMessageInTransaction(message, commit));
            return true;
        } catch (MQClientException failure) {
            if (failure.getCause() instanceof MQBrokerException) {
                int code = ((MQBrokerException) failure.getCause()).getResponseCode();
                assertEquals(MESSAGE_ILLEGAL, code, failure.toString());
                return false;
            }
            throw failure;
        }
    }

    @Test
    void onlyCommittedMessagesAreDelivered() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("transaction", 1);
            TransactionMQProducer producer =
                clients.transactionProducer(Cluster.unique("transaction"));
            producer.setTransactionListener(new TransactionListener() {
                @Override
                public LocalTransactionState executeLocalTransaction(Message sent, Object commit) {
                    return (Boolean) commit ? LocalTransactionState.COMMIT_MESSAGE
                        : LocalTransactionState.ROLLBACK_MESSAGE;
                }

                @Override
                public LocalTransactionState checkLocalTransaction(MessageExt message) {
                    return LocalTransactionState.UNKNOW;
                }
            });
            producer.start();
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique("transaction"), topic, "*", inbox);
            Set<String> wanted = new HashSet<>();
            for (int i = 0; i < 6; i++) {
                String body = "transaction-" + i;
                boolean commit = i % 2 == 0;
                boolean accepted = accepted(producer, Clients.message(topic, "t", body), commit);
                if (accepted && commit) {
                    wanted.add(body);
                }
            }
            inbox.await(wanted.size());
            wanted.addAll(Clients.seed(topic, "t", "end", 1));
            inbox.await(wanted.size());
            assertEquals(wanted, new HashSet<>(inbox.bodies()));
            assertEquals(wanted.size(), inbox.size(), "duplicates");
        }
    }
}
