import type { components } from "./generated/api.js";

/** The schemas of the OpenAPI document by their names. */
export type Schemas = components["schemas"];

export type MessageInput = Schemas["MessageInput"];
export type ReceivedMessage = Schemas["ReceivedMessage"];
export type Problem = Schemas["Problem"];
