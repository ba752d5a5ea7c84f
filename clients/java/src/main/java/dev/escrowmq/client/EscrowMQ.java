package dev.escrowmq.client;

import dev.escrowmq.client.api.AdminApi;
import dev.escrowmq.client.api.AuditApi;
import dev.escrowmq.client.api.ChecksApi;
import dev.escrowmq.client.api.ConsumeApi;
import dev.escrowmq.client.api.DeadLettersApi;
import dev.escrowmq.client.api.GroupsApi;
import dev.escrowmq.client.api.MembersApi;
import dev.escrowmq.client.api.MessagesApi;
import dev.escrowmq.client.api.NamesApi;
import dev.escrowmq.client.api.OffsetsApi;
import dev.escrowmq.client.api.PullApi;
import dev.escrowmq.client.api.RequestsApi;
import dev.escrowmq.client.api.SchedulesApi;
import dev.escrowmq.client.api.TasksApi;
import dev.escrowmq.client.api.TopicsApi;
import dev.escrowmq.client.api.TransactionsApi;
import dev.escrowmq.client.invoker.ApiClient;
import dev.escrowmq.client.invoker.ApiException;
import dev.escrowmq.client.model.MessageInput;
import dev.escrowmq.client.model.Receipt;
import java.net.http.HttpClient;
import java.time.Duration;

/**
 * Sends requests to one service. It is safe for concurrent use.
 *
 * <p>{@link #topics}, {@link #groups} and the like return generated classes with one method for
 * each operation. All of them repeat requests by one {@link Retry}, and throw {@link
 * ProblemException} for a refusal, {@link RefusedException} if entries of a batch are refused, and
 * {@link ApiException} where there is no answer of the service. None of these is checked.
 */
public final class EscrowMQ {
  private static final Duration SOON = Duration.ofSeconds(5);

  private final Builder builder;
  private final ApiClient settings;
  private final MessagesApi messages;
  private final TransactionsApi transactions;
  private final ChecksApi checks;
  private final ConsumeApi consume;
  private volatile EscrowMQ soon;

  private EscrowMQ(Builder builder, Outage outage) {
    this.builder = builder;
    var http = new RepeatingClient(builder.http, builder.addresses, builder.retry, outage);
    settings =
        new ApiClient() {
          @Override
          public HttpClient getHttpClient() {
            return http;
          }
        };
    settings.updateBaseUri(builder.addresses.first().toString());
    settings.setReadTimeout(builder.timeout);
    if (builder.apiKey != null) {
      var bearer = "Bearer " + builder.apiKey;
      settings.setRequestInterceptor(request -> request.header("Authorization", bearer));
    }
    messages = new MessagesApi(settings);
    transactions = new TransactionsApi(settings);
    checks = new ChecksApi(settings);
    consume = new ConsumeApi(settings);
  }

  /**
   * Makes a client of the service at this address, for example http://127.0.0.1:8080. Addresses of
   * several machines, the service and its replicas, have commas between them: requests go to the
   * one that is the service.
   */
  public static EscrowMQ at(String url) {
    return builder(url).build();
  }

  /** Begins a client with settings of its own. */
  public static Builder builder(String url) {
    return new Builder(new Addresses(url));
  }

  /** The settings of a client. */
  public static final class Builder {
    private final Addresses addresses;
    private String apiKey;
    private Retry retry = Retry.DEFAULT;
    private Duration timeout = Duration.ofSeconds(10);
    private HttpClient http;

    private Builder(Addresses addresses) {
      this.addresses = addresses;
    }

    /** Sends the key with every request. */
    public Builder apiKey(String key) {
      if (key != null && key.chars().anyMatch(one -> one < ' ' && one != '\t' || one >= 0x7f)) {
        throw new IllegalArgumentException(
            "the API key has a character that a header cannot have, such as a line break");
      }
      apiKey = key;
      return this;
    }

    /** Replaces the default rule of when a request is sent again. */
    public Builder retry(Retry rule) {
      retry = rule;
      return this;
    }

    /**
     * Sets how long one try waits for a sign of the service, beside the time that its request asks
     * the service to wait: until the answer begins, and for each further part of it. 10 seconds
     * unless it is set. Then the next address is tried.
     */
    public Builder timeout(Duration ofOneTry) {
      timeout = ofOneTry;
      return this;
    }

    /** Replaces the HTTP client, for a proxy or certificates of your own. */
    public Builder httpClient(HttpClient client) {
      http = client;
      return this;
    }

    /** Makes the client. */
    public EscrowMQ build() {
      if (http == null) {
        http =
            HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .connectTimeout(Duration.ofSeconds(10))
                .build();
      }
      return new EscrowMQ(copy(retry), null);
    }

    private Builder copy(Retry rule) {
      var copy = new Builder(addresses).apiKey(apiKey).retry(rule).timeout(timeout);
      return copy.httpClient(http);
    }
  }

  /** Returns the same client for requests that are sent while a local transaction is open. */
  EscrowMQ soon() {
    if (soon == null) {
      var rule = builder.retry;
      var total = rule.total().compareTo(SOON) < 0 ? rule.total() : SOON;
      var copy = builder.copy(new Retry(total, rule.first(), rule.longest()));
      soon = new EscrowMQ(copy.timeout(SOON), null);
    }
    return soon;
  }

  /** Returns a client with these settings whose requests report their tries to the outage. */
  EscrowMQ watched(Outage outage) {
    return new EscrowMQ(builder, outage);
  }

  /** Returns the same, whose requests are not repeated. */
  EscrowMQ watchedOnce(Outage outage) {
    return new EscrowMQ(builder.copy(Retry.NONE), outage);
  }

  /** Stores one message, and returns where. A send that is repeated is stored once. */
  public Receipt send(String topic, MessageInput message) {
    return answered(messages.sendMessage(topic, message, null));
  }

  /**
   * Publishes messages if, and only if, a database transaction commits.
   *
   * <pre>{@code
   * client.transaction("shop", TxOptions.newId().markers(markers, database), tx -> {
   *   tx.add("orders", Messages.json(order).key(order.id()));
   *   tx.local(connection -> insert(connection, order));
   * });
   * }</pre>
   *
   * <p>{@link Tx#local} begins the transaction at the service, then runs the local one with a
   * marker row in it. {@link Tx#mark} writes the row within a local transaction of your own. When
   * the work has ended, with an exception or without, the row is read: if it is there, the service
   * is sent a commit; if not, a fence in the table prevents that it comes later, and the service is
   * sent a rollback. If the database cannot be asked, after an exception between {@link Tx#begin}
   * and {@link Tx#mark}, and whenever the process ends before the decision is sent, the service
   * asks a {@link Checker} or a {@link CheckHandler} of the producer group, and the marker row is
   * the answer.
   *
   * <p>With markers, a return means that the local transaction has committed and the messages are
   * published. Without them it means that the work returned and the messages are published: after
   * {@link Tx#begin} it must return only if its own local transaction has committed. Work that only
   * adds messages is protected against nothing: the process may end between the local commit and
   * the begin.
   *
   * @throws NotMarkedException if there are markers, and the work calls neither {@code local} nor
   *     {@code mark}
   * @throws NotCommittedException if the work returned and its local transaction has not committed
   * @throws CommitPendingException if the messages are published later, after a check
   * @throws OutcomeUnknownException if only a check can find out whether they are published
   */
  public <E extends Exception> void transaction(
      String producerGroup, TxOptions options, TxWork<E> work) throws E {
    try (var tx = open(producerGroup, options)) {
      try {
        work.run(tx);
      } catch (Throwable failure) {
        tx.fail(failure);
        throw failure;
      }
      tx.succeed();
    }
  }

  /** What a transaction does. */
  @FunctionalInterface
  public interface TxWork<E extends Exception> {
    /** Adds messages, and runs or marks the local transaction. */
    void run(Tx tx) throws E;
  }

  /**
   * Opens a transaction whose end you report yourself, by {@link Tx#commit} or {@link Tx#rollback}:
   * for a framework that runs the local transaction. Nothing is sent yet.
   */
  public Tx open(String producerGroup, TxOptions options) {
    return new Tx(this, producerGroup, options);
  }

  /** Returns the value of an accepted request, which a proxy might leave out. */
  static <T> T answered(T value) {
    if (value == null) {
      throw new ApiException("an answer without the JSON of EscrowMQ");
    }
    return value;
  }

  /** Returns the operations on messages. */
  public MessagesApi messages() {
    return messages;
  }

  /** Returns the operations on transactions. */
  public TransactionsApi transactions() {
    return transactions;
  }

  /** Returns the operations on producer groups and their checks. */
  public ChecksApi checks() {
    return checks;
  }

  /** Returns the operations of consumers: receive, acknowledge, reject. */
  public ConsumeApi consume() {
    return consume;
  }

  /** Returns the operations on topics. */
  public TopicsApi topics() {
    return new TopicsApi(settings);
  }

  /** Returns the operations on consumer groups. */
  public GroupsApi groups() {
    return new GroupsApi(settings);
  }

  /** Returns the operations of the members of consumer groups. */
  public MembersApi members() {
    return new MembersApi(settings);
  }

  /** Returns the operations on dead letters. */
  public DeadLettersApi deadLetters() {
    return new DeadLettersApi(settings);
  }

  /** Returns the operations on offsets. */
  public OffsetsApi offsets() {
    return new OffsetsApi(settings);
  }

  /** Returns the operations that read a queue by its offsets. */
  public PullApi pull() {
    return new PullApi(settings);
  }

  /** Returns the operations on requests and replies. */
  public RequestsApi requests() {
    return new RequestsApi(settings);
  }

  /** Returns the operations on schedules. */
  public SchedulesApi schedules() {
    return new SchedulesApi(settings);
  }

  /** Returns the operations on tasks. */
  public TasksApi tasks() {
    return new TasksApi(settings);
  }

  /** Returns the operations of the audit. */
  public AuditApi audit() {
    return new AuditApi(settings);
  }

  /** Returns the operations that tell which machine is the service, and where a topic is. */
  public NamesApi names() {
    return new NamesApi(settings);
  }

  /** Returns the operations on the service itself. */
  public AdminApi admin() {
    return new AdminApi(settings);
  }
}
