package dev.escrowmq.client;

import java.io.FilterInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.http.HttpTimeoutException;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** The body of an answer, of which a read fails where nothing comes for too long. */
final class PatientStream extends FilterInputStream {
  private final Duration limit;

  PatientStream(InputStream body, Duration limit) {
    super(body);
    this.limit = limit;
  }

  @Override
  public int read() throws IOException {
    var one = new byte[1];
    return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
  }

  @Override
  public int read(byte[] part, int from, int length) throws IOException {
    // The timeout of java.net.http ends with the headers of an answer.
    var late = new CompletableFuture<Void>();
    var closed = late.thenRun(this::abandon);
    late.completeOnTimeout(null, limit.toMillis(), TimeUnit.MILLISECONDS);
    try {
      var read = in.read(part, from, length);
      if (late.cancel(false) || read >= 0 && !closed.isDone()) {
        return read;
      }
    } catch (IOException failure) {
      if (late.cancel(false)) {
        throw failure;
      }
    }
    throw new HttpTimeoutException("no further part of the answer within " + limit);
  }

  private void abandon() {
    try {
      in.close(); // which ends the read
    } catch (IOException unwanted) {
      // the read fails as it is
    }
  }
}
