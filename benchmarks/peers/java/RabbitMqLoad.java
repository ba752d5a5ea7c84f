import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** RabbitMQ's own client: a channel a thread on one connection, publisher confirms. Arguments: port and type of the queue. */
final class RabbitMqLoad {
    private static final long CONFIRM_MS = 10_000;
    private static final List<Channel> CHANNELS = new ArrayList<>(); // of the threads, by their numbers

    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost("127.0.0.1");
        factory.setPort(Integer.parseInt(arguments[0]));
        Connection connection = factory.newConnection();
        try (Channel channel = connection.createChannel()) {
            channel.queueDeclare("load", true, false, false, Map.of("x-queue-type", arguments[1]));
        }
        Load.serve(command -> work(command, connection));
    }

    private static Load.Work work(Load.Command command, Connection connection) {
        byte[] payload = (command.text("key") + command.text("tag") + command.text("body")).getBytes();
        AMQP.BasicProperties persistent = new AMQP.BasicProperties.Builder().deliveryMode(2).build();
        int size = command.count("size");
        return number -> {
            if (number == CHANNELS.size()) {
                CHANNELS.add(connection.createChannel());
                CHANNELS.get(number).confirmSelect();
            }
            Channel channel = CHANNELS.get(number);
            return () -> {
                for (int at = 0; at < size; at++) channel.basicPublish("", "load", persistent, payload);
                channel.waitForConfirmsOrDie(CONFIRM_MS);
                return size;
            };
        };
    }
}
