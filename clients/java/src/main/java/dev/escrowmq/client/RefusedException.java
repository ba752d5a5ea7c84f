package dev.escrowmq.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Collections;
import java.util.SortedMap;

/**
 * A request with several entries was answered, and the service refused some of them. The others
 * were accepted.
 */
public final class RefusedException extends EscrowMQException {
  private static final long serialVersionUID = 1L;

  private final transient JsonNode answer;
  private final transient SortedMap<Integer, ProblemException> refused;

  RefusedException(JsonNode answer, SortedMap<Integer, ProblemException> refused) {
    super(
        refused.size() + " entries refused, the first: " + first(refused).getMessage(),
        first(refused));
    this.answer = answer;
    this.refused = Collections.unmodifiableSortedMap(refused);
  }

  /** Returns the problem of each refused entry by its place in the request. */
  public SortedMap<Integer, ProblemException> refused() {
    return refused;
  }

  /** Returns the number of entries that were accepted. */
  public int accepted() {
    return answer.path("accepted").asInt();
  }

  /** Returns the whole answer, for example as {@code BatchSendResult}. */
  public <T> T answer(Class<T> type) {
    return Json.MAPPER.convertValue(answer, type);
  }

  private static ProblemException first(SortedMap<Integer, ProblemException> refused) {
    return refused.get(refused.firstKey());
  }
}
