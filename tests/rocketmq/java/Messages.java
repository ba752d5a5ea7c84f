import com.alibaba.fastjson2.JSONObject;
import java.util.Base64;
import java.util.List;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages as JSON; bodies are base64. */
final class Messages {
    private Messages() {}

    static List<JSONObject> asJson(List<MessageExt> messages) {
        return messages.stream().map(Messages::asJson).toList();
    }

    /** Every field as the client sees it. */
    static JSONObject asJson(MessageExt message) {
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        JSONObject json = new JSONObject();
        json.put("topic", message.getTopic());
        json.put("queue", message.getQueueId());
        json.put("queue_offset", message.getQueueOffset());
        json.put("physical_offset", message.getCommitLogOffset());
        json.put("message_id", message.getMsgId());
        json.put("offset_id", message instanceof MessageClientExt client ? client.getOffsetMsgId() : message.getMsgId());
        json.put("sys_flag", message.getSysFlag());
        json.put("flag", message.getFlag());
        json.put("born_ms", message.getBornTimestamp());
        json.put("born_host", message.getBornHost().toString().substring(1));
        json.put("stored_ms", message.getStoreTimestamp());
        json.put("store_host", message.getStoreHost().toString().substring(1));
        json.put("reconsume_times", message.getReconsumeTimes());
        json.put("prepared_offset", message.getPreparedTransactionOffset());
        json.put("stored_bytes", message.getStoreSize());
        json.put("properties", new TreeMap<>(message.getProperties()));
        json.put("body", Base64.getEncoder().encodeToString(body));
        return json;
    }

    static Message fromJson(JSONObject json) {
        byte[] body = Base64.getDecoder().decode(json.getString("body"));
        Message message = new Message(json.getString("topic"), body);
        if (json.containsKey("tag")) message.setTags(json.getString("tag"));
        if (json.containsKey("keys")) message.setKeys(json.getList("keys", String.class));
        JSONObject properties = json.getJSONObject("properties");
        if (properties != null) properties.forEach((name, value) -> message.putUserProperty(name, value.toString()));
        message.setFlag(json.getIntValue("flag", 0));
        if (json.containsKey("level")) message.setDelayTimeLevel(json.getIntValue("level"));
        if (json.containsKey("delay_ms")) message.setDelayTimeMs(json.getLongValue("delay_ms"));
        if (json.containsKey("deliver_at_ms")) message.setDeliverTimeMs(json.getLongValue("deliver_at_ms"));
        return message;
    }
}
