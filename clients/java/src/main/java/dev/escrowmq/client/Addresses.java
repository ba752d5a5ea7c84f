package dev.escrowmq.client;

import dev.escrowmq.client.model.Problem;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;

/**
 * The addresses of one service: of the machine that takes requests, and of its replicas. All
 * requests go to one until it fails; then to the next of the list, or where a replica leads.
 */
final class Addresses {
  static final String NOT_PRIMARY = "not_primary";

  // With these a machine says that another one may be the service by now.
  private static final Set<String> MOVING = Set.of("recovering", "shutting_down");

  private final List<URI> list;
  private URI now;
  private int at; // the last one of the list that was taken

  /**
   * Takes URLs with commas between them. They may not differ in their paths, which are part of
   * every request already.
   */
  Addresses(String text) {
    var found = new ArrayList<URI>();
    for (var one : text.split(",")) {
      if (!one.isBlank()) {
        found.add(address(one.strip()));
      }
    }
    if (found.isEmpty()) {
      throw new IllegalArgumentException("the address of the service is empty");
    }
    list = List.copyOf(found);
    now = list.get(0);
    if (!list.stream().allMatch(one -> one.getPath().equals(now.getPath()))) {
      throw new IllegalArgumentException("addresses of one service have one path, not " + text);
    }
  }

  private static URI address(String text) {
    var address = URI.create(text.endsWith("/") ? text.substring(0, text.length() - 1) : text);
    var isHttp = "http".equals(address.getScheme()) || "https".equals(address.getScheme());
    if (!isHttp || address.getHost() == null) {
      throw new IllegalArgumentException("an address begins with http:// or https://, not " + text);
    }
    return address;
  }

  /**
   * Returns how often the addresses have had their turn behind so many tries, begun ones included.
   * Waits grow with it: those that are left in a round may answer.
   */
  int rounds(int tries) {
    return (tries + list.size() - 1) / list.size();
  }

  /** Returns the first address, for which requests are made. */
  URI first() {
    return list.get(0);
  }

  /** Returns where requests go. */
  synchronized URI now() {
    return now;
  }

  /** Returns where a request goes at this address. */
  static URI of(URI request, URI address) {
    var query = request.getRawQuery() == null ? "" : "?" + request.getRawQuery();
    var place = address.getScheme() + "://" + address.getRawAuthority();
    return URI.create(place + request.getRawPath() + query);
  }

  /**
   * Takes another address, if a request that went to this one failed so that it may help. {@code
   * problem} is null where there was no answer.
   */
  synchronized void note(URI asked, Problem problem) {
    if (now != asked) {
      return; // another request has seen it
    }
    if (problem != null && NOT_PRIMARY.equals(problem.getCode())) {
      var named = allowed(primary(problem), asked);
      now = named == null ? next() : named;
    } else if (problem == null || isMoving(problem)) {
      now = next();
    }
  }

  /** Returns the next one of the list that is not asked now; the same one where it has no other. */
  private URI next() {
    for (int turn = 0; turn < list.size(); turn++) {
      at = (at + 1) % list.size();
      if (!list.get(at).equals(now)) {
        break;
      }
    }
    return list.get(at);
  }

  private static boolean isMoving(Problem problem) {
    var status = problem.getStatus();
    var isProxys = "not_a_problem_document".equals(problem.getCode());
    return MOVING.contains(problem.getCode()) || isProxys && (status == 502 || status == 504);
  }

  /** Is the request to be sent at once where a replica leads? It has carried nothing out. */
  static boolean isLed(Problem problem) {
    return NOT_PRIMARY.equals(problem.getCode()) && primary(problem) != null;
  }

  /** Returns the address of the service, as a replica knows it; null where it does not. */
  private static String primary(Problem problem) {
    var context = problem.getContext();
    var primary = context == null ? null : context.get("primary");
    return primary == null || primary.isEmpty() ? null : primary;
  }

  /** Returns the address that a replica has named; null where the key must not be sent there. */
  static URI allowed(String primary, URI replica) {
    try {
      var named = primary == null ? null : address(primary);
      var isSecret = "https".equals(replica.getScheme());
      var isPlain = named == null || "http".equals(named.getScheme());
      return isPlain && isSecret || named == null || !named.getPath().equals(replica.getPath())
          ? null
          : named;
    } catch (IllegalArgumentException none) {
      return null;
    }
  }
}
