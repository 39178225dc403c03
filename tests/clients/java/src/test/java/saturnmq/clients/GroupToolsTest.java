package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.regex.Pattern;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What mqadmin does to the progress of groups, with members and without. */
@Tag("admin")
class GroupToolsTest {
    private static final int MESSAGES = 5;

    private static void assertPrints(String output, String pattern) {
        assertTrue(Pattern.compile(pattern, Pattern.MULTILINE).matcher(output).find(),
            "no " + pattern + " in:\n" + output);
    }

    private static String anHourAgo() {
        return Long.toString(System.currentTimeMillis() - 3_600_000);
    }

    private static String moved(String topic, int offset) throws Exception {
        String broker = Cluster.queues(topic).iterator().next().getBrokerName();
        return "^" + Pattern.quote(broker) + "\\s+0\\s+" + offset + "\\s*$";
    }

    /** Has a member of the group consume some messages while {@code then} runs. */
    private interface Work {
        void run(String topic, String group, Inbox inbox) throws Exception;
    }

    private static String[] consumed(String what, Work then) throws Exception {
        String topic = Cluster.createTopic(what, 1);
        String group = Cluster.unique(what);
        try (Clients clients = new Clients()) {
            Clients.seed(topic, "t", what, MESSAGES);
            Inbox inbox = new Inbox();
            clients.push(group, topic, "*", inbox);
            inbox.await(MESSAGES);
            Cluster.awaitProgress(group, 0);
            then.run(topic, group, inbox);
        }
        return new String[] {topic, group};
    }

    @Test
    void aResetByTimeHasMembersConsumeAgain() throws Exception {
        consumed("reset-online", (topic, group, inbox) -> {
            String output = MqAdmin.run("resetOffsetByTime", "-g", group, "-t", topic,
                "-s", anHourAgo());
            assertPrints(output, moved(topic, 0));
            assertEquals(2 * MESSAGES, inbox.await(2 * MESSAGES).size());
        });
    }

    @Test
    void aResetByTimeReachesAGroupWithoutMembers() throws Exception {
        String[] names = consumed("reset-offline", (topic, group, inbox) -> { });
        String output = MqAdmin.run("resetOffsetByTime", "-g", names[1], "-t", names[0],
            "-s", anHourAgo());
        assertPrints(output, "(rollback|start reset) consumer offset by specified");
        Cluster.awaitProgress(names[1], MESSAGES);
    }

    @Test
    void accumulatedMessagesCanBeSkipped() throws Exception {
        String[] names = consumed("skipped", (topic, group, inbox) -> { });
        Clients.seed(names[0], "t", "left", 3);
        Cluster.awaitProgress(names[1], 3);
        MqAdmin.run("skipAccumulatedMessage", "-g", names[1], "-t", names[0]);
        Cluster.awaitProgress(names[1], 0);
    }

    @Test
    void offsetsAreClonedToAnotherGroup() throws Exception {
        String[] names = consumed("cloned", (topic, group, inbox) -> { });
        String to = Cluster.unique("cloned-to");
        // Newer clients are told so when a group that does not exist commits.
        MqAdmin.run("updateSubGroup", "-b", Cluster.brokers().get(0), "-g", to);
        String output = MqAdmin.run("cloneGroupOffset", "-s", names[1], "-d", to,
            "-t", names[0]);
        assertPrints(output, "clone group offset success");
    }

    @Test
    void theToolsSeeTheMembersOfAGroup() throws Exception {
        consumed("seen", (topic, group, inbox) -> {
            assertPrints(MqAdmin.run("consumerStatus", "-g", group), "^(001|1)\\s+\\S+@\\S+");
            assertPrints(MqAdmin.run("consumerConnection", "-g", group), "JAVA");
            String stats = MqAdmin.run("statsAll", "-t", topic);
            assertPrints(stats, "^" + topic + "\\s+" + group + "\\s+0\\b");
        });
    }

    @Test
    void membersAreAskedWhereTheyStand() throws Exception {
        consumed("asked", (topic, group, inbox) -> {
            var status = Cluster.admin().getConsumeStatus(topic, group, null);
            assertEquals(1, status.size(), status.toString());
            var offsets = status.values().iterator().next();
            assertEquals(MESSAGES, offsets.values().iterator().next(), status.toString());
        });
    }
}
