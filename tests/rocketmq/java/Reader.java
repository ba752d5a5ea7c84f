import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reads queues without consuming from them. */
@SuppressWarnings("deprecation") // the one client that pulls at an offset, RocketMQ's own topics too
final class Reader {
    private static final int BATCH = 32;
    private static final int PATIENCE_MS = 60_000;

    private final org.apache.rocketmq.client.consumer.DefaultMQPullConsumer consumer =
        new org.apache.rocketmq.client.consumer.DefaultMQPullConsumer("reader");

    Reader(Session session) throws Exception {
        session.prepare(consumer);
        consumer.start();
    }

    /** All messages of a topic, in the order of its queues; of a light queue, which no route has. */
    Object pull(JSONObject command) throws Exception {
        List<JSONObject> found = new ArrayList<>();
        String topic = command.getString("topic");
        Set<MessageQueue> queues = MixAll.isLmq(topic)
            ? Set.of(new MessageQueue(topic, "broker", 0))
            : consumer.fetchSubscribeMessageQueues(topic);
        for (MessageQueue queue : queues.stream().sorted(Comparator.naturalOrder()).toList()) {
            // A queue of inner batches says -1 until the broker corrects it, though it has messages.
            long offset = Math.max(0, consumer.minOffset(queue));
            while (offset < consumer.maxOffset(queue)) {
                PullResult pulled = consumer.pull(queue, "*", offset, BATCH, PATIENCE_MS);
                if (pulled.getPullStatus() == PullStatus.FOUND) found.addAll(Messages.asJson(pulled.getMsgFoundList()));
                offset = pulled.getNextBeginOffset();
            }
        }
        return found;
    }

    void close() {
        consumer.shutdown();
    }
}
