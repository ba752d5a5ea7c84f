import {
  Checker,
  EscrowMQ,
  type MarkerStore,
  type Outcome,
  type Schemas,
} from "../../src/index.js";

/** By ESCROWMQ_URL and ESCROWMQ_API_KEY. */
export const client = new EscrowMQ();

let number = 0;

/** A name that no other test has. */
export function unique(what: string): string {
  return `${what}-${process.pid}-${++number}`;
}

export async function newTopic(): Promise<string> {
  const topic = unique("topic");
  await client.putTopic(topic, { queues: 1 });
  return topic;
}

export async function newGroup(topic: string, more: Schemas["GroupInput"] = {}): Promise<string> {
  const group = unique("group");
  await client.putGroup(group, { ...more, topics: [{ topic }] });
  return group;
}

export async function stateOf(transaction_id: string, wait_ms = 0): Promise<string> {
  const params = { path: { transaction_id }, query: { wait_ms } };
  return (await client.api.GET("/v1/transactions/{transaction_id}", { params })).state;
}

/** The payloads of the messages that consumers can see. */
export async function published(topic: string): Promise<unknown[]> {
  const params = { path: { topic, queue_id: 0 }, query: { offset: 0 } };
  const path = "/v1/topics/{topic}/queues/{queue_id}/messages";
  const { messages } = await client.api.GET(path, { params });
  return messages.map(({ payload }) => JSON.parse(payload ?? "null"));
}

/** A client whose requests of one kind lose their answer, after the service got them. */
export function losingAnswersOf(path: RegExp): EscrowMQ {
  return new EscrowMQ({
    retry: { totalMs: 0 },
    fetch: async (request) => {
      const response = await fetch(request);
      if (path.test(request.url)) throw new TypeError("the answer was lost");
      return response;
    },
  });
}

/** A client whose requests of one kind do not arrive. */
export function losing(path: RegExp): EscrowMQ {
  return new EscrowMQ({
    retry: { totalMs: 0 },
    fetch: (request) =>
      path.test(request.url) ? Promise.reject(new TypeError("it was lost")) : fetch(request),
  });
}

/** Answer the next checks of a group by its markers. */
export function answerChecks(group: string, markers: MarkerStore<never>): Promise<number> {
  return new Checker(client, group, markers.outcome, { waitMs: 10_000 }).runOnce();
}

export type { Outcome };
