package saturnmq.clients;

import static saturnmq.clients.Clients.message;
import static saturnmq.clients.Clients.stored;

import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Test;

/** What the clients' trace hooks store, found as the trace tools find it. */
class TraceTest {
    /** The kinds of trace records that mention a message. */
    private static Set<String> kinds(String traceTopic, String id) throws Exception {
        Set<String> kinds = new TreeSet<>();
        for (MessageExt found : Cluster.admin()
            .queryMessage(traceTopic, id, 64, 0, Long.MAX_VALUE).getMessageList()) {
            for (TraceContext context :
                TraceDataEncoder.decoderFromTraceDataString(Inbox.body(found))) {
                boolean ours = context.getTraceBeans().stream()
                    .anyMatch(bean -> bean.getMsgId().equals(id));
                if (ours) {
                    kinds.add(context.getTraceType().toString());
                }
            }
        }
        return kinds;
    }

    private static void aMessageIsFollowed(String what, String traceTopic, String traces)
        throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic(what, 1);
            DefaultMQProducer producer = clients.configured(
                new DefaultMQProducer(Cluster.unique(what + "-sender"), true, traceTopic));
            producer.start();
            DefaultMQPushConsumer consumer = clients.configured(
                new DefaultMQPushConsumer(Cluster.unique(what), true, traceTopic));
            consumer.subscribe(topic, "*");
            Inbox inbox = new Inbox();
            consumer.registerMessageListener(Clients.into(inbox));
            consumer.start();
            try {
                SendResult sent = stored(producer.send(message(topic, "t", what)));
                inbox.await(1);
                Set<String> all = Set.of("Pub", "SubBefore", "SubAfter");
                Await.until("all trace records of " + sent.getMsgId(),
                    () -> kinds(traces, sent.getMsgId()).equals(all));
            } finally {
                consumer.shutdown();
                producer.shutdown();
            }
        }
    }

    @Test
    void aMessageIsFollowedInTheSystemsTraceTopic() throws Exception {
        aMessageIsFollowed("traced", null, "RMQ_SYS_TRACE_TOPIC");
    }

    @Test
    void aMessageIsFollowedInATraceTopicOfItsOwn() throws Exception {
        String own = Cluster.createTopic("own-trace", 1);
        aMessageIsFollowed("traced-apart", own, own);
    }
}
