import com.alibaba.fastjson2.JSONObject;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** Groups that consume by push. A consumer notes each delivery, and answers "later" where it is asked to. */
final class Consumers {
    private static final int PATIENCE_MS = 60_000;

    private final Session session;
    private final Map<String, DefaultMQPushConsumer> consumers = new HashMap<>();
    private final Map<String, Events> deliveries = new HashMap<>();

    Consumers(Session session) {
        this.session = session;
    }

    /**
     * Begin to consume. {@code topics}: each with a tag expression, or {@code {"sql": ...}};
     * {@code later}: by key, the delay level of each refusal; -1 makes it a dead letter at once.
     */
    Object consume(JSONObject command) throws Exception {
        String group = command.getString("group");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        session.prepare(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.setAwaitTerminationMillisWhenShutdown(PATIENCE_MS); // of a listener, so that its result counts
        consumer.setMaxReconsumeTimes(command.getIntValue("retries", -1));
        consumer.setClientRebalance(!command.getBooleanValue("pop")); // the broker then says that it is POP
        consumer.setPopInvisibleTime(command.getIntValue("invisible_ms", PATIENCE_MS));
        consumer.setPopBatchNums(1); // a poll that is left at the broker takes no more
        if (command.getBooleanValue("broadcast")) consumer.setMessageModel(MessageModel.BROADCASTING);
        for (Map.Entry<String, Object> topic : command.getJSONObject("topics").entrySet()) {
            if (topic.getValue() instanceof JSONObject filter) consumer.subscribe(topic.getKey(), MessageSelector.bySql(filter.getString("sql")));
            else consumer.subscribe(topic.getKey(), topic.getValue().toString());
        }
        JSONObject later = command.containsKey("later") ? command.getJSONObject("later") : new JSONObject();
        Events noted = deliveries.computeIfAbsent(group, none -> new Events());
        if (command.getBooleanValue("orderly")) consumer.registerMessageListener(orderly(group, noted));
        else consumer.registerMessageListener(concurrently(group, noted, later));
        consumer.start();
        consumers.put(group, consumer);
        return null;
    }

    Object deliveries(JSONObject command) throws InterruptedException {
        return deliveries.get(command.getString("group")).since(command);
    }

    /** Stop the consumer of a group; its offsets are with the broker then. */
    Object end(JSONObject command) {
        consumers.remove(command.getString("group")).shutdown();
        return null;
    }

    void close() {
        consumers.values().forEach(DefaultMQPushConsumer::shutdown);
    }

    private static MessageListenerConcurrently concurrently(String group, Events noted, JSONObject later) {
        return (messages, context) -> {
            MessageExt message = messages.get(0); // one at a time is the client's default
            List<Integer> levels = message.getKeys() == null ? null : later.getList(message.getKeys(), Integer.class);
            boolean refused = levels != null && message.getReconsumeTimes() < levels.size();
            note(group, noted, message, refused);
            if (!refused) return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            context.setDelayLevelWhenNextConsume(levels.get(message.getReconsumeTimes()));
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        };
    }

    private static MessageListenerOrderly orderly(String group, Events noted) {
        return (messages, context) -> {
            messages.forEach(message -> note(group, noted, message, false));
            return ConsumeOrderlyStatus.SUCCESS;
        };
    }

    private static void note(String group, Events noted, MessageExt message, boolean refused) {
        JSONObject delivery = Messages.asJson(message);
        delivery.put("group", group);
        delivery.put("refused", refused);
        noted.add(delivery);
    }
}
