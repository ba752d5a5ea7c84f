/** A producer that kills itself at a step: node dies.js DATABASE STEP ID TOPIC GROUP */
import { EscrowMQ } from "../../src/index.js";
import { databases } from "./databases.js";

const [name = "", step, id = "", topic = "", group = ""] = process.argv.slice(2);

function reached(one: string): void {
  if (one === step) process.kill(process.pid, "SIGKILL");
}

const client = new EscrowMQ({
  fetch: async (request) => {
    const call = request.url.endsWith("/commit") ? "commit" : "begin";
    reached(`before ${call}`);
    const response = await fetch(request);
    reached(`after ${call}`);
    return response;
  },
});
const database = await databases[name]?.();
const check = { first_after_ms: 10, interval_ms: 10 };
const options = { id, markers: database?.markers, check };

await client.transaction(group, options, async (tx) => {
  tx.add(topic, { json: id });
  await database?.transaction(async (db) => {
    await tx.mark(db);
    reached("after mark");
  });
  reached("after local commit");
});
