package dev.escrowmq.client;

import com.fasterxml.jackson.databind.node.NullNode;
import dev.escrowmq.client.model.MessageInput;
import dev.escrowmq.client.model.ReceivedMessage;
import java.nio.charset.StandardCharsets;
import java.util.Base64;

/** Makes messages; the setters of {@link MessageInput} add a key, a delay and the rest. */
public final class Messages {
  private Messages() {}

  /** Makes a message whose body is the value as JSON, for example of a record or a map. */
  public static MessageInput json(Object value) {
    return new MessageInput().json(value == null ? NullNode.getInstance() : value);
  }

  /** Makes a message whose body is the text. */
  public static MessageInput text(String body) {
    return new MessageInput().payload(body);
  }

  /** Makes a message with any bytes as its body. */
  public static MessageInput bytes(byte[] body) {
    return new MessageInput()
        .payload(Base64.getEncoder().encodeToString(body))
        .payloadEncoding("base64");
  }

  /** Returns the bytes of a received message. */
  public static byte[] body(ReceivedMessage message) {
    if (message.getPayload() == null) {
      return new byte[0];
    }
    if ("base64".equals(message.getPayloadEncoding())) {
      return Base64.getDecoder().decode(message.getPayload());
    }
    return message.getPayload().getBytes(StandardCharsets.UTF_8);
  }
}
