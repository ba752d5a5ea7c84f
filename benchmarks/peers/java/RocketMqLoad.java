import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** RocketMQ's own client: one producer for all threads, as its documentation has it. Arguments: name server and broker. */
final class RocketMqLoad {
    private static final AtomicLong KEYS = new AtomicLong();
    private static String nameServer;
    private static DefaultMQProducer producer;
    private static TransactionMQProducer transactions;

    public static void main(String[] arguments) throws Exception {
        nameServer = arguments[0];
        createTopic(arguments[1]);
        producer = new DefaultMQProducer("load");
        start(producer);
        transactions = new TransactionMQProducer("load-transactions");
        transactions.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
            @Override public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        start(transactions);
        Load.serve(RocketMqLoad::work);
    }

    private static void start(DefaultMQProducer one) throws Exception {
        one.setNamesrvAddr(nameServer);
        one.setInstanceName(one.getProducerGroup());
        one.start();
    }

    private static void createTopic(String broker) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(5_000);
        admin.setNamesrvAddr(nameServer);
        admin.start();
        admin.createAndUpdateTopicConfig(broker, new TopicConfig("load", 8, 8, 6));
        while (true) { // until the name server knows it
            try {
                if (!admin.examineTopicRouteInfo("load").getQueueDatas().isEmpty()) break;
            } catch (Exception notYet) {
                Thread.sleep(50);
            }
        }
        admin.shutdown();
    }

    private static Load.Work work(Load.Command command) {
        String tag = command.text("tag");
        byte[] payload = command.text("body").getBytes();
        return switch (command.text("work")) {
            case "single" -> number -> () -> stored(producer.send(message(tag, payload)), 1);
            case "batch" -> {
                int size = command.count("size");
                yield number -> () -> {
                    List<Message> messages = new ArrayList<>(size);
                    for (int at = 0; at < size; at++) messages.add(message(tag, payload));
                    return stored(producer.send(messages), size);
                };
            }
            case "transaction" -> number -> () -> stored(transactions.sendMessageInTransaction(message(tag, payload), null), 1);
            default -> throw new IllegalArgumentException(command.json());
        };
    }

    private static Message message(String tag, byte[] payload) {
        return new Message("load", tag, key(KEYS.incrementAndGet()), payload);
    }

    /** 16 digits, without the cost of a format. */
    private static String key(long number) {
        String digits = Long.toString(number);
        return "0000000000000000".substring(digits.length()) + digits;
    }

    private static int stored(SendResult result, int count) {
        if (result.getSendStatus() != SendStatus.SEND_OK) throw new IllegalStateException(result.toString());
        return count;
    }
}
