package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.HashSet;
import java.util.Set;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Test;

/** Transactional messages: seen after commit, never after rollback. */
class TransactionTest {
    @Test
    void onlyCommittedMessagesAreDelivered() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("transaction", 1);
            TransactionMQProducer producer =
                clients.transactionProducer(Cluster.unique("transaction"));
            producer.setTransactionListener(new TransactionListener() {
                @Override
                public LocalTransactionState executeLocalTransaction(Message message, Object commit) {
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
            for (int i = 0; i < 6; i++) {
                Message message = Clients.message(topic, "t", "transaction-" + i);
                Clients.stored(producer.sendMessageInTransaction(message, i % 2 == 0));
            }
            inbox.await(3);
            Clients.seed(topic, "t", "end", 1);
            inbox.await(4);
            assertEquals(Set.of("transaction-0", "transaction-2", "transaction-4", "end-0"),
                new HashSet<>(inbox.bodies()));
            assertEquals(4, inbox.size(), "duplicates");
        }
    }
}
