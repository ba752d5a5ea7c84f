import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own client. Argument: the bootstrap server. */
final class KafkaLoad {
    private static final AtomicLong KEYS = new AtomicLong();
    private static final Map<Integer, KafkaProducer<byte[], byte[]>> TRANSACTIONAL = new ConcurrentHashMap<>();
    private static String servers;

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin.createTopics(List.of(new NewTopic("load", 8, (short) 1))).all().get();
        }
        KafkaProducer<byte[], byte[]> shared = producer(Map.of());
        Load.serve(command -> work(command, shared));
    }

    private static KafkaProducer<byte[], byte[]> producer(Map<String, Object> more) {
        Map<String, Object> options = new HashMap<>(Map.of("bootstrap.servers", servers, "acks", "all", "linger.ms", 0));
        options.putAll(more);
        return new KafkaProducer<>(options, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static Load.Work work(Load.Command command, KafkaProducer<byte[], byte[]> shared) {
        byte[] payload = (command.text("tag") + command.text("body")).getBytes();
        return switch (command.text("work")) {
            case "single" -> number -> () -> {
                shared.send(message(payload)).get();
                return 1;
            };
            case "batch" -> {
                int size = command.count("size");
                yield number -> () -> {
                    List<Future<RecordMetadata>> sent = new ArrayList<>(size);
                    for (int at = 0; at < size; at++) sent.add(shared.send(message(payload)));
                    for (Future<RecordMetadata> one : sent) one.get();
                    return size;
                };
            }
            case "transaction" -> number -> {
                KafkaProducer<byte[], byte[]> own = TRANSACTIONAL.computeIfAbsent(number, KafkaLoad::transactional);
                return () -> {
                    own.beginTransaction();
                    own.send(message(payload));
                    own.commitTransaction();
                    return 1;
                };
            };
            default -> throw new IllegalArgumentException(command.json());
        };
    }

    private static KafkaProducer<byte[], byte[]> transactional(int number) {
        KafkaProducer<byte[], byte[]> made = producer(Map.of("transactional.id", "load-" + number, "buffer.memory", 1 << 20));
        made.initTransactions();
        return made;
    }

    private static ProducerRecord<byte[], byte[]> message(byte[] payload) {
        String digits = Long.toString(KEYS.incrementAndGet());
        return new ProducerRecord<>("load", ("0000000000000000".substring(digits.length()) + digits).getBytes(), payload);
    }
}
