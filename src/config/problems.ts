/** Describes problems of a configuration in one sentence each: the place, and the value that was expected. */
import { closestMatch } from "leven";
import { z } from "zod";

/** Returns the text of a path, such as `upstreams[0].base_url`. */
export const pathText = (path: readonly PropertyKey[]): string =>
  path
    .map((step) => (typeof step === "number" ? `[${step}]` : `.${String(step)}`))
    .join("")
    .replace(/^\./, "") || "config";

/** Names a flag or a variable in the place of the path that its value has here, which its user has not written. */
export const renamed = (
  problems: readonly string[],
  names: Readonly<Record<string, string>>,
): string[] =>
  problems.map((problem) => {
    const [path = ""] = problem.split(": ", 1);
    const name = names[path];
    return name === undefined ? problem : name + problem.slice(path.length);
  });

/** Returns a fault of YAML and its place without the lines of the file that follow, which may hold secrets. */
export function yamlFault(message: string): string {
  const head = (message.split("\n")[0] ?? "").replace(/:$/, "");
  if (head.startsWith("Source contains multiple documents"))
    return "the file has a line --- with more settings behind it: it may have one document only";
  const hint = isAtVariable(message)
    ? `within { } and [ ] a variable needs quotes, as in "\${NAME}"`
    : HINTS.find(([pattern]) => pattern.test(head))?.[1];
  return hint === undefined ? head : `${head} (${hint})`;
}

/** What to do about faults that YAML names in words of its own. */
const HINTS: readonly (readonly [RegExp, string])[] = [
  // A star without quotes, such as `models: [*]`.
  [/^(?:Alias cannot|Unresolved alias)/, 'a text that begins with * needs quotes, as in "*"'],
  [
    /^Nested mappings/,
    'is the next line indented more than this one? A text with ": " in it needs quotes',
  ],
  [
    /^(?:Sequence item without|All \w+ items must)/,
    "is this line indented as the ones that it belongs to?",
  ],
];

/** Whether the fault is the brace of a variable without quotes. The last two lines are the one of the file, and a pointer below it. */
function isAtVariable(message: string): boolean {
  const [line = "", pointer = ""] = message.trimEnd().split("\n").slice(-2);
  return line[pointer.indexOf("^") - 1] === "$";
}

export function describeIssue(issue: z.core.$ZodIssue, schema: z.ZodType): string[] {
  if (issue.code === "unrecognized_keys") {
    const known = keysAt(schema, issue.path);
    const homes = issue.path.length === 0 ? homesOfKeys(schema, known) : new Map<string, string>();
    return issue.keys.map((key) => {
      const place = pathText([...issue.path, key]);
      // Entries of other kinds have it.
      if (known.includes(key)) return `${place}: unknown key for this kind`;
      const hint = suggestion(closestTo(key, known) ?? homes.get(key));
      return `${place}: unknown key${hint}`;
    });
  }
  const isMissing = issue.code === "invalid_type" || issue.code === "invalid_value";
  if (isMissing && issue.input === undefined) {
    const values = issue.code === "invalid_value" ? `, one of ${issue.values.join(", ")}` : "";
    return [`${pathText(issue.path)}: required${values}`];
  }
  return [`${pathText(issue.path)}: ${problemOf(issue, schema) ?? issue.message}`];
}

/** Says what is wrong with a value; null where the schema says it itself. */
function problemOf(issue: z.core.$ZodIssue, schema: z.ZodType): string | null {
  switch (issue.code) {
    case "invalid_type":
      return typeProblem(issue, schema);
    case "too_big":
      return issue.message.startsWith("Too big")
        ? boundProblem(issue, "most", issue.maximum)
        : null;
    case "too_small":
      return issue.message.startsWith("Too small")
        ? boundProblem(issue, "least", issue.minimum)
        : null;
    case "invalid_value":
      return issue.message.startsWith("Invalid")
        ? `expected ${issue.values.length === 1 ? "" : "one of "}${issue.values.join(", ")}`
        : null;
    case "invalid_key": {
      const [ofKey] = issue.issues;
      return ofKey === undefined ? null : (problemOf(ofKey, schema) ?? ofKey.message);
    }
    default:
      return null;
  }
}

/** Says how much is allowed. A text or a list that is too short is empty. */
function boundProblem(
  { input }: z.core.$ZodIssue,
  end: "least" | "most",
  bound: number | bigint,
): string {
  if (typeof input === "number") return `expected at ${end} ${bound}, got ${input}`;
  const isList = Array.isArray(input);
  if (end === "least")
    return `expected ${isList ? "a list with entries, got none" : "a text, got an empty one"}`;
  return `expected at most ${bound} ${isList ? "entries" : "characters"}`;
}

const KINDS: Partial<Record<string, string>> = {
  array: "a list",
  boolean: "true or false",
  int: "a whole number",
  number: "a number",
  object: "keys with values",
  record: "keys with values",
  string: "a text",
};
const LISTED_KEYS = 4;

/** Says which type of value is expected, and for one with keys the first of them; null where the schema says it itself. */
function typeProblem(
  { expected, message, input, path }: z.core.$ZodIssueInvalidType,
  schema: z.ZodType,
): string | null {
  const kind = KINDS[expected];
  if (kind === undefined || !message.startsWith("Invalid input: expected")) return null;
  const keys = keysAt(schema, path);
  const listed = keys.slice(0, LISTED_KEYS).join(", ") + (keys.length > LISTED_KEYS ? ", …" : "");
  const isNumber = typeof input === "number" && (expected === "int" || expected === "number");
  const got = isNumber ? String(input) : kindOfInput(input);
  if (keys.length === 0) return `expected ${kind}, got ${got}`;
  const isJoined = typeof input === "string" && JOINED_KEY.test(input);
  const hint = isJoined ? " (a colon needs a space behind it)" : "";
  return `expected ${kind} (${listed}), got ${got}${hint}`;
}

/** Matches a key and its value as YAML takes them for one text, such as `port:8080`. */
const JOINED_KEY = /^\w+:[^/\s]/;

function kindOfInput(input: unknown): string {
  if (input === null) return "nothing";
  if (Array.isArray(input)) return "a list";
  return KINDS[typeof input] ?? `a ${typeof input}`;
}

/** The most letters that may differ between an unknown word and the word to suggest. */
const maxDistance = (word: string) => Math.max(2, Math.floor(word.length / 3));

const closestTo = (key: string, known: readonly string[]) =>
  closestMatch(key, known, { maxDistance: maxDistance(key) });

const suggestion = (meant: string | undefined) =>
  meant === undefined ? "" : `, did you mean ${meant}?`;

/** Returns the path of each key that belongs below one key of the top, and below no other. */
function homesOfKeys(schema: z.ZodType, tops: readonly string[]): Map<string, string> {
  const homes = new Map<string, string>();
  const shared = new Set<string>();
  for (const top of tops) {
    for (const key of keysAt(schema, [top])) {
      if (homes.has(key)) shared.add(key);
      homes.set(key, `${top}.${key}`);
    }
  }
  for (const key of shared) homes.delete(key);
  return homes;
}

type JsonSchema = z.core.JSONSchema._JSONSchema;

/** Returns the keys that a schema knows at a place. They come from JSON Schema, because zod cannot list them itself. */
function keysAt(schema: z.ZodType, path: readonly PropertyKey[]): string[] {
  const root = z.toJSONSchema(schema, { io: "input", unrepresentable: "any" }) as JsonSchema;
  const step = (found: readonly JsonSchema[], name: PropertyKey): JsonSchema[] =>
    found.flatMap(alternatives).flatMap((each) => {
      const next = typeof name === "number" ? each.items : each.properties?.[String(name)];
      return next === undefined ? [] : [next as JsonSchema];
    });
  const there = path.reduce<readonly JsonSchema[]>(step, [root]).flatMap(alternatives);
  return there.flatMap((each) => Object.keys(each.properties ?? {}));
}

type Alternatives = readonly Exclude<JsonSchema, boolean>[];

const alternatives = (schema: JsonSchema): Alternatives =>
  typeof schema === "boolean"
    ? []
    : [schema, ...[...(schema.anyOf ?? []), ...(schema.oneOf ?? [])].flatMap(alternatives)];
