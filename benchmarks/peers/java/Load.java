import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicReference;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The load of a peer with a client in Java: the same lines of JSON in and out as the program in Go (benchmarks/load/main.go). */
final class Load {
    /** One JSON object without objects in it. */
    record Command(String json) {
        String text(String name) {
            Matcher found = Pattern.compile("\"" + name + "\"\\s*:\\s*(?:\"([^\"]*)\"|([^,}\\s]+))").matcher(json);
            if (!found.find()) throw new IllegalArgumentException(name + " is missing: " + json);
            return found.group(1) != null ? found.group(1) : found.group(2);
        }
        double number(String name) { return Double.parseDouble(text(name)); }
        int count(String name) { return (int) number(name); }
    }

    /** Does one operation and waits for its answer; returns the number of messages. */
    interface Worker { int run() throws Exception; }

    /** Makes the worker of one thread. */
    interface Work { Worker worker(int number) throws Exception; }

    interface Works { Work of(Command command) throws Exception; }

    static void serve(Works works) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // of clients that print
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            try {
                Command command = new Command(line);
                run(command, works.of(command), out);
            } catch (Throwable error) {
                error.printStackTrace();
                out.println("{\"event\":\"failed\",\"error\":\"" + String.valueOf(error).replaceAll("[\"\\\\\\p{Cntrl}]", "'") + "\"}");
            }
        }
        Runtime.getRuntime().halt(0); // clients leave threads behind
    }

    private static final class Loop extends Thread {
        final Worker worker;
        final long begin;
        final long end;
        final AtomicReference<Throwable> error;
        long[] latencies = new long[1 << 12];
        int operations;
        int refused;
        long messages;

        Loop(Worker worker, long begin, long end, AtomicReference<Throwable> error) {
            this.worker = worker;
            this.begin = begin;
            this.end = end;
            this.error = error;
        }

        @Override public void run() {
            for (long began = System.nanoTime(); began < end; ) {
                int count = 0;
                try {
                    count = worker.run();
                } catch (Exception refusal) { // of a broker that is busy, for one
                    error.set(refusal);
                }
                long ended = System.nanoTime();
                if (ended >= begin && ended < end) {
                    if (count == 0) {
                        refused++;
                    } else {
                        if (operations == latencies.length) latencies = Arrays.copyOf(latencies, 2 * operations);
                        latencies[operations++] = ended - began;
                        messages += count;
                    }
                }
                began = ended;
            }
        }
    }

    private static void run(Command command, Work work, PrintStream out) throws Throwable {
        Worker[] workers = new Worker[command.count("connections")];
        for (int number = 0; number < workers.length; number++) workers[number] = work.worker(number);
        long begin = System.nanoTime() + (long) (command.number("warm_seconds") * 1e9);
        long end = begin + (long) (command.number("seconds") * 1e9);
        AtomicReference<Throwable> error = new AtomicReference<>();
        Loop[] threads = new Loop[workers.length];
        for (int number = 0; number < workers.length; number++) {
            threads[number] = new Loop(workers[number], begin, end, error);
            threads[number].start();
        }
        sleepUntil(begin);
        out.println("{\"event\":\"begin\"}");
        sleepUntil(end);
        out.println("{\"event\":\"end\"}");
        int operations = 0;
        int refused = 0;
        long messages = 0;
        for (Loop thread : threads) {
            thread.join();
            operations += thread.operations;
            refused += thread.refused;
            messages += thread.messages;
        }
        if (operations == 0) throw error.get() != null ? error.get() : new IllegalStateException("no operation ended in time");
        long[] all = new long[operations];
        int at = 0;
        for (Loop thread : threads) {
            System.arraycopy(thread.latencies, 0, all, at, thread.operations);
            at += thread.operations;
        }
        Arrays.sort(all);
        out.printf(Locale.ROOT,
            "{\"event\":\"result\",\"operations\":%d,\"messages\":%d,\"refused\":%d,\"seconds\":%.6f,\"p50_ms\":%.4f,\"p99_ms\":%.4f}%n",
            operations, messages, refused, (end - begin) / 1e9, quantile(all, 0.5), quantile(all, 0.99));
    }

    private static double quantile(long[] sorted, double share) {
        return sorted.length == 0 ? 0 : sorted[Math.min(sorted.length - 1, (int) (share * sorted.length))] / 1e6;
    }

    private static void sleepUntil(long nanos) throws InterruptedException {
        long left = nanos - System.nanoTime();
        if (left > 0) Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
    }
}
