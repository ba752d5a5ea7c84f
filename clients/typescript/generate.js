// Writes the types of an OpenAPI document, and how its operations are sent:
// node generate.js DOCUMENT
import { mkdir, readFile, writeFile } from "node:fs/promises";
import openapiTS, { astToString, COMMENT_HEADER } from "openapi-typescript";

const document = JSON.parse(await readFile(process.argv[2], "utf8"));
const { schemas } = document.components;

/** Collect the names of the schemas that a part of the document refers to. */
function collect(part, names) {
  if (typeof part !== "object" || part === null) return;
  for (const [key, value] of Object.entries(part)) {
    const name = key === "$ref" ? value.split("/").at(-1) : undefined;
    if (name === undefined) collect(value, names);
    else if (!names.has(name)) collect(schemas[name], names.add(name));
  }
}

// A request with a word that the service does not know is refused: the compiler refuses it, too.
// Words that only responses have are strings, as later versions of the service may add some.
const written = new Set();
for (const operation of Object.values(document.paths).flatMap(Object.values)) {
  collect([operation.requestBody, operation.parameters], written);
}
for (const name of written) {
  const words = schemas[name]?.["x-extensible-enum"];
  if (words) schemas[name].enum = words;
}

await mkdir("src/generated", { recursive: true });
const types = astToString(await openapiTS(document));
await writeFile("src/generated/api.ts", COMMENT_HEADER + types);

/** The text of a set of the operations that are chosen, each by its method and path. */
function setOf(name, comment, isChosen) {
  const names = Object.entries(document.paths).flatMap(([path, item]) =>
    Object.entries(item).flatMap(([method, operation]) =>
      isChosen(operation, method) ? [`${method.toUpperCase()} ${path}`] : [],
    ),
  );
  const lines = names.map((one) => `  ${JSON.stringify(one)},\n`);
  const set = `new Set([\n${lines.join("")}])`;
  return `/** ${comment} */\nexport const ${name}: ReadonlySet<string> = ${set};\n`;
}

const takesKey = ({ parameters = [] }) => parameters.some(({ name }) => name === "Idempotency-Key");
const removes = ({ responses }, method) => method === "delete" && "204" in responses;
const sets = [
  setOf("KEYED", "Those that take an `Idempotency-Key`.", takesKey),
  setOf("SENT_ONCE", "Those that act once more each time.", (one) => one["x-send-once"] === true),
  setOf("REMOVING", "Those that remove something, and have no other result.", removes),
];
await writeFile("src/generated/operations.ts", sets.join("\n"));
