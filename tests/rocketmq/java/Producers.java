import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sends messages and transactions, and answers checks. */
final class Producers {
    private static final int PATIENCE_MS = 30_000;

    private final Session session;
    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private final Map<String, TransactionMQProducer> transactional = new HashMap<>();
    private final Map<String, Answers> answersOfGroups = new ConcurrentHashMap<>();
    private final Map<String, Commit> halves = new HashMap<>();
    private final Events checks = new Events();
    private List<String> topics = List.of();
    private Thread flood;
    private final AtomicBoolean floods = new AtomicBoolean();
    private final List<JSONObject> flooded = new ArrayList<>();

    Producers(Session session) {
        this.session = session;
    }

    /** Messages one by one; {@code compress}: zlib, lz4 or zstd for all bodies, or nothing. */
    Object send(JSONObject command) throws Exception {
        DefaultMQProducer producer = producer(command.getString("compress"));
        List<JSONObject> results = new ArrayList<>();
        for (JSONObject json : messages(command)) {
            Message message = Messages.fromJson(json);
            results.add(asJson(json.containsKey("queue")
                ? producer.send(message, new MessageQueue(message.getTopic(), "broker", json.getIntValue("queue")), PATIENCE_MS)
                : producer.send(message, PATIENCE_MS)));
        }
        return results;
    }

    /** All messages in one request; the ids of a batch are joined in one result. */
    Object sendBatch(JSONObject command) throws Exception {
        List<Message> batch = messages(command).stream().map(Messages::fromJson).toList();
        return asJson(producer(null).send(batch, PATIENCE_MS));
    }

    /** A request whose reply is sent, and compressed, as it is. */
    Object request(JSONObject command) throws Exception {
        return Requests.request(session, producer(command.getString("compress")), command);
    }

    /** A half message; {@code answer} is that of the local transaction: commit, rollback or unknown. */
    @SuppressWarnings("deprecation") // the one way to decide a transaction a second time
    Object sendTransaction(JSONObject command) throws Exception {
        LocalTransactionState answer = state(command.getString("answer"));
        TransactionMQProducer producer = transactional(command.getString("group"), command.getString("compress"));
        Message message = Messages.fromJson(command.getJSONObject("message"));
        SendResult sent = producer.sendMessageInTransaction(message, answer);
        halves.put(sent.getTransactionId(), offsetId -> {
            sent.setOffsetMsgId(offsetId);
            producer.getDefaultMQProducerImpl().endTransaction(message, sent, LocalTransactionState.COMMIT_MESSAGE, null);
        });
        return asJson(sent);
    }

    /** Commit a transaction of this run after any other decision; {@code offset_id} is that of its half. */
    Object commit(JSONObject command) throws Exception {
        halves.get(command.getString("transaction_id")).send(command.getString("offset_id"));
        return null;
    }

    /** Be a producer of the group that answers each check so, and is connected from the start. */
    Object answerChecks(JSONObject command) throws Exception {
        String group = command.getString("group");
        Answers answers = answers(group);
        answers.standing = state(command.getString("answer"));
        JSONObject byKey = command.getJSONObject("by_key");
        if (byKey != null) byKey.forEach((key, answer) -> answers.byKey.put(key, state(answer.toString())));
        topics = command.getList("topics", String.class);
        transactional(group, null);
        return null;
    }

    Object checks(JSONObject command) throws InterruptedException {
        return checks.since(command);
    }

    /** Send numbered messages in a thread of its own until the flood is ended, or the broker is gone. */
    Object flood(JSONObject command) throws Exception {
        DefaultMQProducer producer = producer(null);
        producer.setRetryTimesWhenSendFailed(0);
        floods.set(true);
        flooded.clear();
        flood = new Thread(() -> {
            try {
                for (int number = 0; floods.get(); number++) {
                    String key = command.getString("prefix") + number;
                    Message message = new Message(command.getString("topic"), "", key, key.getBytes());
                    JSONObject sent = asJson(producer.send(message, PATIENCE_MS));
                    sent.put("key", key);
                    synchronized (flooded) { flooded.add(sent); }
                }
            } catch (Exception over) {
                // The broker was killed: what was not acknowledged may be stored or not.
            }
        });
        flood.start();
        return null;
    }

    /** The acknowledged messages. */
    Object endFlood() throws InterruptedException {
        floods.set(false);
        flood.join();
        return flooded;
    }

    void close() {
        producers.values().forEach(DefaultMQProducer::shutdown);
        transactional.values().forEach(TransactionMQProducer::shutdown);
    }

    private Answers answers(String group) {
        return answersOfGroups.computeIfAbsent(group, Answers::new);
    }

    private DefaultMQProducer producer(String compress) throws Exception {
        String name = "senders-" + compress;
        if (!producers.containsKey(name)) {
            DefaultMQProducer producer = new DefaultMQProducer(name);
            session.prepare(producer);
            setCompression(producer, compress);
            producer.start();
            producers.put(name, producer);
        }
        return producers.get(name);
    }

    private TransactionMQProducer transactional(String group, String compress) throws Exception {
        String name = group + "-" + compress;
        if (!transactional.containsKey(name)) {
            TransactionMQProducer producer = new TransactionMQProducer(group);
            session.prepare(producer, "compress-" + compress); // a group has one producer in an instance
            setCompression(producer, compress);
            producer.setTopics(topics); // without a topic it knows no broker, and gets no check
            producer.setTransactionListener(answers(group));
            producer.start();
            transactional.put(name, producer);
        }
        return transactional.get(name);
    }

    private static void setCompression(DefaultMQProducer producer, String compress) {
        producer.setCompressMsgBodyOverHowmuch(compress == null ? Integer.MAX_VALUE : 1);
        if (compress != null) producer.setCompressType(CompressionType.of(compress));
    }

    private static Collection<JSONObject> messages(JSONObject command) {
        JSONArray messages = command.getJSONArray("messages");
        return messages.toList(JSONObject.class);
    }

    private static LocalTransactionState state(String answer) {
        return switch (answer) {
            case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
            case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
            default -> LocalTransactionState.UNKNOW;
        };
    }

    private static JSONObject asJson(SendResult result) {
        JSONObject json = new JSONObject();
        json.put("status", result.getSendStatus().name());
        json.put("message_id", result.getMsgId());
        json.put("offset_id", result.getOffsetMsgId());
        json.put("transaction_id", result.getTransactionId());
        json.put("queue", result.getMessageQueue().getQueueId());
        json.put("queue_offset", result.getQueueOffset());
        return json;
    }

    private interface Commit {
        void send(String offsetId) throws Exception;
    }

    /** What a producer group answers, and a note of each check. */
    private final class Answers implements TransactionListener {
        private final String group;
        private final Map<String, LocalTransactionState> byKey = new ConcurrentHashMap<>();
        private volatile LocalTransactionState standing = LocalTransactionState.UNKNOW;

        Answers(String group) {
            this.group = group;
        }

        @Override public LocalTransactionState executeLocalTransaction(Message message, Object answer) {
            return (LocalTransactionState) answer;
        }

        @Override public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String key = message.getKeys() == null ? "" : message.getKeys();
            LocalTransactionState answer = byKey.getOrDefault(key, standing);
            JSONObject check = Messages.asJson(message);
            check.put("group", group);
            check.put("answer", answer.name());
            check.put("transaction_id", message.getTransactionId());
            checks.add(check);
            return answer;
        }
    }
}
