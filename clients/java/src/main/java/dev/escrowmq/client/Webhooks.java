package dev.escrowmq.client;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.util.Base64;
import java.util.List;
import java.util.function.UnaryOperator;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Verifies signed webhooks (Standard Webhooks). */
public final class Webhooks {
  static final Duration TOLERANCE = Duration.ofMinutes(5);

  private Webhooks() {}

  /**
   * Verifies the signature of a webhook over its raw body, and returns its webhook-id, which is the
   * same on every try. During a rotation give both secrets.
   *
   * @param secrets {@code whsec_} and base64, each
   * @param header returns a header by its name, or null: {@code request::getHeader}, for example
   * @throws InvalidSignatureException if you must not act on it
   */
  public static String verify(
      List<String> secrets, UnaryOperator<String> header, byte[] body, Instant now) {
    var id = header.apply("webhook-id");
    var stamp = header.apply("webhook-timestamp");
    var given = header.apply("webhook-signature");
    if (id == null || id.isEmpty() || given == null || !isRecent(stamp, now)) {
      throw new InvalidSignatureException();
    }
    for (var secret : secrets) {
      var expected = signature(secret, id + "." + stamp + ".", body);
      for (var one : given.split(" ")) {
        if (MessageDigest.isEqual(one.getBytes(StandardCharsets.UTF_8), expected)) {
          return id;
        }
      }
    }
    throw new InvalidSignatureException();
  }

  private static boolean isRecent(String stamp, Instant now) {
    if (stamp == null || !stamp.matches("\\d{1,11}")) {
      return false;
    }
    var age = Duration.between(Instant.ofEpochSecond(Long.parseLong(stamp)), now).abs();
    return age.compareTo(TOLERANCE) <= 0;
  }

  private static byte[] signature(String secret, String prefix, byte[] body) {
    var text = secret.startsWith("whsec_") ? secret.substring("whsec_".length()) : secret;
    try {
      var mac = Mac.getInstance("HmacSHA256");
      mac.init(new SecretKeySpec(Base64.getDecoder().decode(text), "HmacSHA256"));
      mac.update(prefix.getBytes(StandardCharsets.UTF_8));
      var sum = Base64.getEncoder().encodeToString(mac.doFinal(body));
      return ("v1," + sum).getBytes(StandardCharsets.UTF_8);
    } catch (GeneralSecurityException | IllegalArgumentException malformed) {
      throw new IllegalArgumentException("a webhook secret is whsec_ and base64", malformed);
    }
  }
}
