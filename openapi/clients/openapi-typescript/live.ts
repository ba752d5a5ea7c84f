/** Begin, commit, send, receive, ack and a refused commit, by the types of openapi-typescript. */
import createClient from "openapi-fetch";
import type { components, paths } from "./generated/api.js";

type Schemas = components["schemas"];

// @ts-expect-error: the states of a transaction are a closed set, so a misspelt one is an error
export const misspelt: Schemas["TransactionState"] = "comitted";

const environment = process.env as { ESCROWMQ_URL: string; ESCROWMQ_API_KEY: string };
const client = createClient<paths>({
  baseUrl: environment.ESCROWMQ_URL,
  headers: { authorization: `Bearer ${environment.ESCROWMQ_API_KEY}` },
});

function given<T>(answer: { data?: T; error?: Schemas["Problem"] }): T {
  if (answer.data === undefined) throw new Error(answer.error?.code ?? "no answer");
  return answer.data;
}

async function begin(transaction_id: string, n: number): Promise<Schemas["Transaction"]> {
  return given(
    await client.POST("/v1/transactions", {
      body: {
        transaction_id,
        producer_group: "live",
        messages: [{ topic: "live", message: { json: { n }, key: `n-${n}` } }],
      },
    }),
  );
}

console.log("begin", (await begin("live-1", 1)).state);

const committed = given(
  await client.POST("/v1/transactions/{transaction_id}/commit", {
    params: { path: { transaction_id: "live-1" } },
  }),
);
console.log("commit", committed.state);

const receipt = given(
  await client.POST("/v1/topics/{topic}/messages", {
    params: { path: { topic: "live" }, header: { "Idempotency-Key": "live-2" } },
    body: { json: { n: 2 } },
  }),
);
console.log("send", receipt.durability);

const received = given(
  await client.POST("/v1/groups/{group}/receive", {
    params: { path: { group: "live" } },
    body: { max_messages: 10, wait_ms: 5_000 },
  }),
);
console.log("receive", ...received.messages.map((message) => message.payload));

const settled = given(
  await client.POST("/v1/groups/{group}/ack", {
    params: { path: { group: "live" } },
    body: { entries: received.messages.map(({ receipt_handle }) => ({ receipt_handle })) },
  }),
);
console.log("ack", settled.accepted);

await begin("live-3", 3);
given(
  await client.POST("/v1/transactions/{transaction_id}/rollback", {
    params: { path: { transaction_id: "live-3" } },
    body: {},
  }),
);
const refused = await client.POST("/v1/transactions/{transaction_id}/commit", {
  params: { path: { transaction_id: "live-3" } },
});
console.log("refused", refused.error?.status, refused.error?.code);
