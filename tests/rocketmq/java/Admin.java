import com.alibaba.fastjson2.JSONObject;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What an operator asks of a broker. */
final class Admin {
    private static final int PATIENCE_MS = 60_000;

    private final String broker;
    private final NamesrvController names;
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt(PATIENCE_MS);

    Admin(Session session, String broker, NamesrvController names) throws Exception {
        this.broker = broker;
        this.names = names;
        session.prepare(admin);
        admin.setAdminExtGroup("operator");
        admin.start();
    }

    /**
     * Let the broker tell the name server all its topics; the number of topics. By itself it can do
     * so 10 s after its start: its first attempt comes before it has found the name server.
     */
    Object register() throws Exception {
        Properties permission = new Properties();
        permission.setProperty("brokerPermission", "6");
        while (true) {
            admin.updateBrokerConfig(broker, permission);
            var registered = names.getRouteInfoManager().getAllTopicList().getTopicList();
            if (registered.containsAll(admin.getAllTopicConfig(broker, PATIENCE_MS).getTopicConfigTable().keySet())) {
                return registered.size();
            }
        }
    }

    Object createTopic(JSONObject command) throws Exception {
        int queues = command.getIntValue("queues", 4);
        TopicConfig topic = new TopicConfig(command.getString("topic"), queues, queues, command.getIntValue("perm", 6));
        topic.setReadQueueNums(command.getIntValue("read_queues", queues));
        topic.setOrder(command.getBooleanValue("order", false));
        JSONObject attributes = command.getJSONObject("attributes");
        if (attributes != null) attributes.forEach((name, value) -> topic.getAttributes().put("+" + name, value.toString()));
        admin.createAndUpdateTopicConfig(broker, topic);
        while (names.getRouteInfoManager().pickupTopicRouteData(topic.getTopicName()) == null) Thread.onSpinWait();
        return null;
    }

    Object createGroup(JSONObject command) throws Exception {
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName(command.getString("group"));
        group.setRetryMaxTimes(command.getIntValue("retries", group.getRetryMaxTimes()));
        group.setConsumeBroadcastEnable(command.getBooleanValue("broadcast", group.isConsumeBroadcastEnable()));
        group.setConsumeMessageOrderly(command.getBooleanValue("orderly", group.isConsumeMessageOrderly()));
        admin.createAndUpdateSubscriptionGroupConfig(broker, group);
        return null;
    }

    /** Let consumers of the group get the messages of the topic by POP. */
    Object setPop(JSONObject command) throws Exception {
        String topic = command.getString("topic");
        admin.setMessageRequestMode(broker, topic, command.getString("group"), MessageRequestMode.POP, 0, PATIENCE_MS);
        return null;
    }

    /** Settings of the broker that take effect while it runs. */
    Object configure(JSONObject command) throws Exception {
        Properties settings = new Properties();
        command.getJSONObject("settings").forEach((name, value) -> settings.setProperty(name, value.toString()));
        admin.updateBrokerConfig(broker, settings);
        return null;
    }

    Object topics() throws Exception {
        Map<String, Object> found = new TreeMap<>();
        admin.getAllTopicConfig(broker, PATIENCE_MS).getTopicConfigTable().forEach((name, topic) -> found.put(name, Map.of(
            "read_queues", topic.getReadQueueNums(), "write_queues", topic.getWriteQueueNums(), "perm", topic.getPerm(),
            "order", topic.isOrder(), "attributes", topic.getAttributes())));
        return found;
    }

    Object groups() throws Exception {
        Map<String, Object> found = new TreeMap<>();
        admin.getAllSubscriptionGroup(broker, PATIENCE_MS).getSubscriptionGroupTable().forEach((name, group) -> found.put(name, Map.of(
            "retries", group.getRetryMaxTimes(), "broadcast", group.isConsumeBroadcastEnable(),
            "orderly", group.isConsumeMessageOrderly(), "enabled", group.isConsumeEnable())));
        return found;
    }

    /** Of a group in a topic: its offset by queue, and where the queue ends. */
    Object offsets(JSONObject command) throws Exception {
        Map<String, List<Long>> found = new TreeMap<>();
        var stats = admin.examineConsumeStats(command.getString("group"), command.getString("topic"));
        stats.getOffsetTable().forEach((queue, offset) -> found.put(
            Integer.toString(queue.getQueueId()), List.of(offset.getConsumerOffset(), offset.getBrokerOffset())));
        return found;
    }

    Object setOffset(JSONObject command) throws Exception {
        admin.updateConsumeOffset(broker, command.getString("group"), queue(command), command.getLongValue("offset"));
        return null;
    }

    /** The first and the next offset of each queue of a topic. */
    Object bounds(JSONObject command) throws Exception {
        Map<String, List<Long>> found = new TreeMap<>();
        admin.examineTopicStats(broker, command.getString("topic")).getOffsetTable().forEach((queue, bounds) -> found.put(
            Integer.toString(queue.getQueueId()), List.of(bounds.getMinOffset(), bounds.getMaxOffset())));
        return found;
    }

    Object byKey(JSONObject command) throws Exception {
        try {
            var found = admin.queryMessage(command.getString("topic"), command.getString("key"), 64, 0, Long.MAX_VALUE);
            return Messages.asJson(found.getMessageList());
        } catch (MQClientException none) {
            return List.of();
        }
    }

    Object byId(JSONObject command) throws Exception {
        return Messages.asJson(admin.viewMessage(command.getString("topic"), command.getString("id")));
    }

    void close() {
        admin.shutdown();
    }

    private static MessageQueue queue(JSONObject command) {
        return new MessageQueue(command.getString("topic"), "broker", command.getIntValue("queue"));
    }
}
