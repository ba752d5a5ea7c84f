package dev.escrowmq.client;

import com.fasterxml.jackson.databind.ObjectMapper;
import dev.escrowmq.client.invoker.ApiClient;
import java.io.IOException;

/** The one mapper of this package. */
final class Json {
  static final ObjectMapper MAPPER = ApiClient.createDefaultObjectMapper();

  private Json() {}

  /** Reads a document, or returns null where it is none of this type. */
  static <T> T readOrNull(byte[] document, Class<T> type) {
    try {
      return MAPPER.readValue(document, type);
    } catch (IOException none) {
      return null;
    }
  }

  /** Returns the same JSON without characters beyond ASCII. They occur within strings alone. */
  static String inAscii(String document) {
    var text = new StringBuilder(document.length());
    for (int place = 0; place < document.length(); place++) {
      char letter = document.charAt(place);
      if (letter < 0x80) {
        text.append(letter);
      } else {
        text.append(String.format("\\u%04x", (int) letter));
      }
    }
    return text.toString();
  }
}
