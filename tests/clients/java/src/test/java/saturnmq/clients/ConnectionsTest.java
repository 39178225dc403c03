package saturnmq.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static saturnmq.clients.Clients.message;
import static saturnmq.clients.Clients.stored;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.junit.jupiter.api.Test;

/** The ways to a broker. */
class ConnectionsTest {
    private static void sendsAndIsShutDown(DefaultMQProducer producer, String topic, String body)
        throws Exception {
        producer.setSendMsgTimeout(10_000);
        producer.start();
        try {
            SendResult[] result = new SendResult[1];
            // A client with a dead name server may ask that one first.
            Await.until("a send", () -> {
                result[0] = producer.send(message(topic, "t", body));
                return true;
            });
            stored(result[0]);
        } finally {
            producer.shutdown();
        }
    }

    @Test
    void theVipChannelTakesSendsAndPulls() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("vip", 1);
            DefaultMQProducer producer =
                clients.configured(new DefaultMQProducer(Cluster.unique("vip")));
            producer.setVipChannelEnabled(true);
            sendsAndIsShutDown(producer, topic, "by the other port");
            DefaultMQPushConsumer consumer = clients.push(Cluster.unique("vip"));
            consumer.setVipChannelEnabled(true);
            Inbox inbox = new Inbox();
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(Clients.into(inbox));
            consumer.start();
            assertEquals("by the other port", Inbox.body(inbox.await(1).get(0)));
        }
    }

    @Test
    void aClientThatSignsItsRequestsIsServed() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("signed", 1);
            DefaultMQProducer producer = clients.configured(new DefaultMQProducer(
                Cluster.unique("signed"),
                new AclClientRPCHook(new SessionCredentials("key", "secret"))));
            sendsAndIsShutDown(producer, topic, "signed");
            Cluster.awaitStored(topic, 1);
        }
    }

    @Test
    void oneLivingNameServerOfTwoIsEnough() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("half-dead", 1);
            DefaultMQProducer producer =
                clients.configured(new DefaultMQProducer(Cluster.unique("half-dead")));
            producer.setNamesrvAddr("127.0.0.1:1;" + Cluster.NAME_SERVER);
            sendsAndIsShutDown(producer, topic, "found");
            Cluster.awaitStored(topic, 1);
        }
    }

    @Test
    void twoGroupsShareAClientAndOneGroupDoesNotStartTwice() throws Exception {
        try (Clients clients = new Clients()) {
            String topic = Cluster.createTopic("clash", 1);
            String instance = Cluster.unique("clash-instance");
            DefaultMQProducer one = clients.configured(
                new DefaultMQProducer(Cluster.unique("clash-one")));
            DefaultMQProducer twice = clients.configured(
                new DefaultMQProducer(Cluster.unique("clash-one")));
            DefaultMQProducer other = clients.configured(
                new DefaultMQProducer(Cluster.unique("clash-other")));
            one.setInstanceName(instance);
            twice.setInstanceName(instance);
            other.setInstanceName(instance);
            one.start();
            try {
                assertThrows(MQClientException.class, twice::start);
                sendsAndIsShutDown(other, topic, "other");
                stored(one.send(message(topic, "t", "one")));
            } finally {
                one.shutdown();
            }
            Cluster.awaitStored(topic, 2);
        }
    }
}
