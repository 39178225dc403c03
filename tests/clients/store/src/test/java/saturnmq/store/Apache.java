package saturnmq.store;

import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Path;
import java.util.Map;
import java.util.Properties;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** Apache's broker and name server of the release under test, in this process. */
final class Apache implements Server {
    static final String RELEASE = System.getProperty("rocketmq.version");
    /** Of 500; runs beside each other have others. */
    private static final int FIRST_PORT = Integer.getInteger("ports", 26_000);
    private static int nextPort;

    static {
        // As Apache's start-up class does: name servers take no topics from a broker without it.
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY,
            Integer.toString(MQVersion.CURRENT_VERSION));
    }

    private final NamesrvController names;
    private final BrokerController broker;
    private final String host;
    private final int port;

    private Apache(NamesrvController names, BrokerController broker, String host, int port) {
        this.names = names;
        this.broker = broker;
        this.host = host;
        this.port = port;
    }

    /** Opens {@code store} with {@code more} settings; fails when Apache refuses. */
    static Apache startAt(Path store, String host, String... more) throws Exception {
        System.setProperty("rocketmq.home.dir", store.getParent().toString());
        NamesrvController names = nameServer(host, store);
        int port = freePort();
        Properties settings = settings(store, host, port, more);
        settings.setProperty("namesrvAddr",
            host + ":" + names.getNettyServerConfig().getListenPort());
        BrokerConfig brokerConfig = new BrokerConfig();
        NettyServerConfig serverConfig = new NettyServerConfig();
        NettyClientConfig clientConfig = new NettyClientConfig();
        MessageStoreConfig storeConfig = new MessageStoreConfig();
        for (Object config : new Object[] {brokerConfig, serverConfig, clientConfig, storeConfig}) {
            MixAll.properties2Object(settings, config);
        }
        BrokerController broker =
            new BrokerController(brokerConfig, serverConfig, clientConfig, storeConfig);
        boolean opened;
        // 5.x fills a table of the whole process here, and two at once disturb each other.
        synchronized (Apache.class) {
            opened = broker.initialize();
        }
        if (!opened) {
            broker.shutdown();
            names.shutdown();
            throw new AssertionError("Apache " + RELEASE + " refuses " + store);
        }
        broker.start();
        // It is registered some time later.
        Await.until("a route", () ->
            names.getRouteInfoManager().pickupTopicRouteData("SELF_TEST_TOPIC") != null);
        return new Apache(names, broker, host, port);
    }

    static Apache start(Path store, String... more) throws Exception {
        return startAt(store, "127.0.0.1", more);
    }

    private static Properties settings(Path store, String host, int port, String... more) {
        Properties settings = new Properties();
        for (Map.Entry<String, String> setting : Settings.common().entrySet()) {
            settings.setProperty(setting.getKey(), setting.getValue());
        }
        settings.setProperty("listenPort", Integer.toString(port));
        settings.setProperty("bindAddress", host.replaceAll("[\\[\\]]", ""));
        settings.setProperty("brokerIP1", host.replaceAll("[\\[\\]]", ""));
        settings.setProperty("storePathRootDir", store.toString());
        settings.setProperty("storePathCommitLog", store.resolve("commitlog").toString());
        settings.setProperty("haListenPort", "0");
        // 5.x: 38 MB of memory for each broker.
        settings.setProperty("timerWheelEnable", "false");
        for (String setting : more) {
            String[] pair = setting.split("=", 2);
            settings.setProperty(pair[0], pair[1]);
        }
        return settings;
    }

    private static NamesrvController nameServer(String host, Path store) throws Exception {
        NamesrvConfig config = new NamesrvConfig();
        config.setKvConfigPath(store.resolveSibling(store.getFileName() + ".kv.json").toString());
        NettyServerConfig server = new NettyServerConfig();
        Properties settings = new Properties();
        settings.setProperty("listenPort", Integer.toString(freePort()));
        settings.setProperty("bindAddress", host.replaceAll("[\\[\\]]", ""));
        MixAll.properties2Object(settings, server);
        NamesrvController names = new NamesrvController(config, server);
        names.initialize();
        names.start();
        return names;
    }

    /**
     * A port below those that connections get, free together with the one two below it; each once
     * before any comes again, because it is bound later.
     */
    static synchronized int freePort() throws Exception {
        while (true) {
            int port = FIRST_PORT + 2 + nextPort;
            nextPort = (nextPort + 4) % 496;
            try (ServerSocket one = new ServerSocket(port, 1, InetAddress.getByName("0.0.0.0"));
                ServerSocket two = new ServerSocket(port - 2)) {
                return one.getLocalPort();
            } catch (java.io.IOException taken) {
                continue;
            }
        }
    }

    MessageStore store() {
        return broker.getMessageStore();
    }

    @Override
    public String nameServer() {
        return host + ":" + names.getNettyServerConfig().getListenPort();
    }

    @Override
    public String address() {
        return host + ":" + port;
    }

    @Override
    public void close() {
        broker.shutdown();
        names.shutdown();
    }
}
