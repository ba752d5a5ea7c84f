import dev.escrowmq.client.ApiClient;
import dev.escrowmq.client.ApiException;
import dev.escrowmq.client.api.ConsumeApi;
import dev.escrowmq.client.api.MessagesApi;
import dev.escrowmq.client.api.TransactionsApi;
import dev.escrowmq.client.model.AckEntry;
import dev.escrowmq.client.model.AckInput;
import dev.escrowmq.client.model.BeginInput;
import dev.escrowmq.client.model.MessageInput;
import dev.escrowmq.client.model.Problem;
import dev.escrowmq.client.model.ReceiveInput;
import dev.escrowmq.client.model.RollbackInput;
import dev.escrowmq.client.model.Transaction;
import dev.escrowmq.client.model.TransactionMessageInput;
import java.util.Map;

/** A program on the client that openapi-generator makes: what a user's first one would do. */
public final class Live {
  private final TransactionsApi transactions;
  private final MessagesApi messages;
  private final ConsumeApi consume;
  private final ApiClient client = new ApiClient();

  private Live(String url, String key) {
    client.updateBaseUri(url);
    client.setRequestInterceptor(request -> request.header("Authorization", "Bearer " + key));
    transactions = new TransactionsApi(client);
    messages = new MessagesApi(client);
    consume = new ConsumeApi(client);
  }

  public static void main(String[] arguments) throws Exception {
    new Live(System.getenv("ESCROWMQ_URL"), System.getenv("ESCROWMQ_API_KEY")).run();
  }

  private void run() throws Exception {
    System.out.println("begin " + begin("live-1").getState().getValue());
    System.out.println("commit " + transactions.commitTransaction("live-1").getState().getValue());

    var sent = messages.sendMessage("live", new MessageInput().json(Map.of("n", 2)), null);
    System.out.println("send " + sent.getDurability());

    var received = consume.receiveMessages("live", new ReceiveInput().waitMs(5000L));
    System.out.print("receive");
    var input = new AckInput();
    for (var message : received.getMessages()) {
      System.out.print(" " + message.getPayload());
      input.addEntriesItem(new AckEntry().receiptHandle(message.getReceiptHandle()));
    }
    System.out.println();
    System.out.println("ack " + consume.ackMessages("live", input).getAccepted());

    begin("live-3");
    transactions.rollbackTransaction("live-3", new RollbackInput());
    try {
      transactions.commitTransaction("live-3");
      throw new IllegalStateException("a rolled back transaction was committed");
    } catch (ApiException refused) {
      var problem = client.getObjectMapper().readValue(refused.getResponseBody(), Problem.class);
      System.out.println("refused " + problem.getStatus() + " " + problem.getCode());
    }
  }

  private Transaction begin(String id) throws ApiException {
    var message =
        new TransactionMessageInput()
            .topic("live")
            .message(new MessageInput().json(Map.of("n", 1)));
    return transactions.beginTransaction(
        new BeginInput().transactionId(id).producerGroup("live").addMessagesItem(message), null);
  }
}
