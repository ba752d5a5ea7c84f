/** Begin, commit, send, receive, ack and a refused commit, by the functions of hey-api. */
import { createClient } from "./generated/client/index.js";
import {
  ackMessages,
  beginTransaction,
  commitTransaction,
  receiveMessages,
  rollbackTransaction,
  sendMessage,
  type TransactionState,
} from "./generated/index.js";

// @ts-expect-error: the states of a transaction are a closed set, so a misspelt one is an error
export const misspelt: TransactionState = "comitted";

const { ESCROWMQ_URL, ESCROWMQ_API_KEY } = process.env as {
  ESCROWMQ_URL: string;
  ESCROWMQ_API_KEY: string;
};
const client = createClient({ baseUrl: ESCROWMQ_URL, auth: () => ESCROWMQ_API_KEY });

const begin = (transaction_id: string, n: number) =>
  beginTransaction({
    client,
    throwOnError: true,
    body: {
      transaction_id,
      producer_group: "live",
      messages: [{ topic: "live", message: { json: { n }, key: `n-${n}` } }],
    },
  });

console.log("begin", (await begin("live-1", 1)).data.state);

const committed = await commitTransaction({
  client,
  throwOnError: true,
  path: { transaction_id: "live-1" },
});
console.log("commit", committed.data.state);

const sent = await sendMessage({
  client,
  throwOnError: true,
  path: { topic: "live" },
  headers: { "Idempotency-Key": "live-2" },
  body: { json: { n: 2 } },
});
console.log("send", sent.data.durability);

const received = await receiveMessages({
  client,
  throwOnError: true,
  path: { group: "live" },
  body: { max_messages: 10, wait_ms: 5_000 },
});
const messages = received.data.messages;
console.log("receive", ...messages.map((message) => message.payload));

const settled = await ackMessages({
  client,
  throwOnError: true,
  path: { group: "live" },
  body: { entries: messages.map(({ receipt_handle }) => ({ receipt_handle })) },
});
console.log("ack", settled.data.accepted);

await begin("live-3", 3);
await rollbackTransaction({
  client,
  throwOnError: true,
  path: { transaction_id: "live-3" },
  body: {},
});
const refused = await commitTransaction({ client, path: { transaction_id: "live-3" } });
console.log("refused", refused.error?.status, refused.error?.code);
