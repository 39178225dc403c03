package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.HashSet;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * What a broker's restart must not change. The two halves run in two processes with the same
 * CLIENTS_RUN; between them the broker is stopped and started again.
 */
class RestartTest {
    private static final String CONSUMED = "restart-consumed";
    private static final String WAITING = "restart-waiting";
    private static final int COUNT = 40;

    @Test
    void beforeRestartMessagesAreConsumedAndOthersLeftWaiting() throws Exception {
        try (Clients clients = new Clients()) {
            String consumed = Cluster.createTopic(CONSUMED, 4);
            Clients.seed(consumed, "t", "before", COUNT);
            Inbox inbox = new Inbox();
            clients.push(Cluster.unique(CONSUMED), consumed, "*", inbox);
            inbox.await(COUNT);
            Cluster.awaitProgress(Cluster.unique(CONSUMED), 0);
        }
        String waiting = Cluster.createTopic(WAITING, 2);
        Clients.seed(waiting, "t", "waiting", COUNT);
        Cluster.awaitStored(waiting, COUNT);
    }

    @Test
    @Tag("after-restart")
    void afterRestartNothingIsRedeliveredAndNothingIsLost() throws Exception {
        try (Clients clients = new Clients()) {
            String consumed = Cluster.unique(CONSUMED);
            Await.until("route of " + consumed, () -> Cluster.stored(consumed) == COUNT);
            Inbox rest = new Inbox();
            clients.push(Cluster.unique(CONSUMED), consumed, "*", rest);
            List<String> recent = Clients.seed(consumed, "t", "after", COUNT);
            rest.await(COUNT);
            assertEquals(new HashSet<>(recent), new HashSet<>(rest.bodies()));
            assertEquals(COUNT, rest.size(), "redelivered: " + rest.bodies());

            String waiting = Cluster.unique(WAITING);
            Inbox left = new Inbox();
            clients.push(Cluster.unique(WAITING), waiting, "*", left);
            left.await(COUNT);
            HashSet<String> wanted = new HashSet<>();
            for (int i = 0; i < COUNT; i++) {
                wanted.add("waiting-" + i);
            }
            assertEquals(wanted, new HashSet<>(left.bodies()));
        }
    }
}
