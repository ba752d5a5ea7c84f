import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.namesrv.NamesrvController;

/** All clients of one run of a broker. The next run has clients of its own: no route is left over. */
final class Session {
    private static final AtomicInteger NUMBERS = new AtomicInteger();
    private static final int POLL_MS = 500; // routes, heartbeats

    final Admin admin;
    final Reader reader;
    final Producers producers;
    final Consumers consumers;
    private final String nameServer;
    private final int number = NUMBERS.incrementAndGet();

    Session(String nameServer, String broker, NamesrvController names) throws Exception {
        this.nameServer = nameServer;
        admin = new Admin(this, broker, names);
        reader = new Reader(this);
        producers = new Producers(this);
        consumers = new Consumers(this);
    }

    void prepare(ClientConfig client) {
        prepare(client, "clients");
    }

    /** Name server and short intervals; clients of one instance share connections. */
    void prepare(ClientConfig client, String instance) {
        client.setNamesrvAddr(nameServer);
        client.setInstanceName(instance + "-" + number);
        client.setPollNameServerInterval(POLL_MS);
        client.setHeartbeatBrokerInterval(POLL_MS);
        client.setPersistConsumerOffsetInterval(POLL_MS);
        client.setVipChannelEnabled(false);
    }

    /** Consumers have left their groups then; the connections, which take seconds, end behind. */
    void close() {
        consumers.close();
        new Thread(() -> {
            producers.close();
            reader.close();
            admin.close();
        }).start();
    }
}
