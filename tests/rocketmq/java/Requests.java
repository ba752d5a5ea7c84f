import static java.util.concurrent.TimeUnit.MILLISECONDS;

import com.alibaba.fastjson2.JSONObject;
import java.util.Base64;
import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** A request, and a consumer that replies to it. */
final class Requests {
    private static final int PATIENCE_MS = 60_000;

    private Requests() {}

    /** Send a request that a consumer of the group answers with {@code reply}; the body that comes back. */
    static Object request(Session session, DefaultMQProducer producer, JSONObject command) throws Exception {
        Message request = Messages.fromJson(command.getJSONObject("message"));
        byte[] reply = Base64.getDecoder().decode(command.getString("reply"));
        DefaultMQPushConsumer replier = new DefaultMQPushConsumer(command.getString("group"));
        session.prepare(replier);
        replier.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        replier.setAwaitTerminationMillisWhenShutdown(PATIENCE_MS); // of a listener, so that its result counts
        replier.subscribe(request.getTopic(), "*");
        replier.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> answer(producer, message, reply));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        replier.start();
        try {
            CompletableFuture<Message> received = new CompletableFuture<>();
            producer.request(request, waiting(received), PATIENCE_MS);
            return Base64.getEncoder().encodeToString(received.get(PATIENCE_MS, MILLISECONDS).getBody());
        } finally {
            replier.shutdown();
        }
    }

    private static RequestCallback waiting(CompletableFuture<Message> received) {
        return new RequestCallback() {
            @Override public void onSuccess(Message message) {
                if (message != null) received.complete(message); // null: the request is sent
            }

            @Override public void onException(Throwable failed) {
                received.completeExceptionally(failed);
            }
        };
    }

    private static void answer(DefaultMQProducer producer, Message request, byte[] reply) {
        try {
            producer.send(MessageUtil.createReplyMessage(request, reply));
        } catch (Exception failed) {
            throw new IllegalStateException(failed);
        }
    }
}
