import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.List;

/** Events in their order, which a test waits for. */
final class Events {
    private final List<JSONObject> events = new ArrayList<>();

    synchronized void add(JSONObject event) {
        events.add(event);
        notifyAll();
    }

    /** Those from number {@code since} on, as soon as there is one; none when {@code wait_ms} is over. */
    synchronized List<JSONObject> since(JSONObject command) throws InterruptedException {
        int first = command.getIntValue("since");
        long deadline = System.nanoTime() + command.getLongValue("wait_ms") * 1_000_000;
        while (events.size() <= first) {
            long left = (deadline - System.nanoTime()) / 1_000_000;
            if (left <= 0) return List.of();
            wait(left);
        }
        return new ArrayList<>(events.subList(first, events.size()));
    }
}
