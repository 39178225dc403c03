package saturnmq.store;

/** A running broker with a name server, whoever's. */
interface Server extends AutoCloseable {
    /** Of its name server. */
    String nameServer();

    /** Of the broker itself. */
    String address();

    /** Stops it in order. */
    @Override
    void close() throws Exception;
}
