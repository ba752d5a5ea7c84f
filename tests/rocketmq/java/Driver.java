import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;

/**
 * RocketMQ's clients, driven by tests: one JSON object a line on standard input, one answer a line
 * on standard output. A name server runs in this process, too.
 *
 * <p>Arguments: the port of the name server and a folder of its own.
 */
final class Driver {
    private final String nameServer;
    private final NamesrvController names;
    private Session session;

    private Driver(int port, String folder) throws Exception {
        NamesrvConfig config = new NamesrvConfig();
        config.setRocketmqHome(folder);
        config.setKvConfigPath(folder + "/kvConfig.json");
        config.setConfigStorePath(folder + "/namesrv.properties");
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(port);
        server.setBindAddress("127.0.0.1");
        names = new NamesrvController(config, server);
        if (!names.initialize()) throw new IllegalStateException("the name server does not start");
        names.start();
        nameServer = "127.0.0.1:" + port;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // what libraries print is no answer
        Driver driver = new Driver(Integer.parseInt(arguments[0]), arguments[1]);
        answers.println("{\"ready\": true}");
        var commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = commands.readLine()) != null; ) {
            answers.println(answer(driver, JSON.parseObject(line)));
        }
        System.exit(0); // the threads of clients do not end by themselves
    }

    private static String answer(Driver driver, JSONObject command) {
        JSONObject answer = new JSONObject();
        try {
            answer.put("result", driver.run(command));
        } catch (Exception failed) {
            failed.printStackTrace();
            answer.put("error", failed.toString());
        }
        return answer.toString(JSONWriter.Feature.WriteMapNullValue);
    }

    private Object run(JSONObject command) throws Exception {
        String verb = command.getString("do");
        if (verb.equals("open")) {
            close();
            session = new Session(nameServer, command.getString("broker"), names);
            return session.admin.register();
        }
        if (verb.equals("close")) {
            close();
            return null;
        }
        return switch (verb) {
            case "create_topic" -> session.admin.createTopic(command);
            case "create_group" -> session.admin.createGroup(command);
            case "set_pop" -> session.admin.setPop(command);
            case "configure" -> session.admin.configure(command);
            case "topics" -> session.admin.topics();
            case "groups" -> session.admin.groups();
            case "offsets" -> session.admin.offsets(command);
            case "set_offset" -> session.admin.setOffset(command);
            case "bounds" -> session.admin.bounds(command);
            case "by_key" -> session.admin.byKey(command);
            case "by_id" -> session.admin.byId(command);
            case "pull" -> session.reader.pull(command);
            case "send" -> session.producers.send(command);
            case "send_batch" -> session.producers.sendBatch(command);
            case "send_transaction" -> session.producers.sendTransaction(command);
            case "commit" -> session.producers.commit(command);
            case "request" -> session.producers.request(command);
            case "flood" -> session.producers.flood(command);
            case "end_flood" -> session.producers.endFlood();
            case "answer_checks" -> session.producers.answerChecks(command);
            case "checks" -> session.producers.checks(command);
            case "consume" -> session.consumers.consume(command);
            case "deliveries" -> session.consumers.deliveries(command);
            case "end_consumer" -> session.consumers.end(command);
            default -> throw new IllegalArgumentException("no such command: " + verb);
        };
    }

    private void close() {
        if (session != null) session.close();
        session = null;
    }
}
