/**
 * Generates `docs/configuration.md`: every key of the configuration, from the schema that the server itself uses. A key
 * without a description is an error. So is an optional key whose absence is not explained.
 */
import { z } from "zod";
import { TAKES_EFFECT } from "../src/config/changes.ts";
import { OVERRIDES } from "../src/config/overrides.ts";
import { ConfigFile } from "../src/config/schema.ts";
import { code, table } from "./markdown.ts";

type Schema = z.core.JSONSchema.JSONSchema & {
  readonly unit?: string;
  readonly left_out?: string;
  readonly type_text?: string;
  readonly example?: string;
};

interface Key {
  readonly path: string;
  readonly schema: Schema;
  readonly isRequired: boolean;
}

/** The output schema has the defaults; the input schema has the required keys. */
const OUTPUT = z.toJSONSchema(ConfigFile, { io: "output", unrepresentable: "any" }) as Schema;
const INPUT = z.toJSONSchema(ConfigFile, { io: "input", unrepresentable: "any" }) as Schema;

const propertiesOf = (schema: Schema) => Object.entries((schema.properties ?? {}) as object);

const objectIn = ({ items }: Schema): Schema | null => {
  const schema = items as Schema | undefined;
  const kinds = schema?.oneOf as Schema[] | undefined;
  if (kinds !== undefined) return merged(kinds);
  return schema?.properties === undefined ? null : schema;
};

/** Returns one schema for mappings of several kinds. A key that not all kinds have says which ones do. */
function merged(kinds: readonly Schema[]): Schema {
  const names = [...new Set(kinds.flatMap((kind) => Object.keys(kind.properties ?? {})))];
  const owners = (name: string) => kinds.filter(({ properties }) => name in (properties ?? {}));
  const properties = names.map((name) => [name, mergedKey(name, owners(name), kinds.length)]);
  const required = names.filter((name) =>
    owners(name).every((kind) => kind.required?.includes(name)),
  );
  return { type: "object", properties: Object.fromEntries(properties), required };
}

const kindOf = ({ properties = {} }: Schema) => (properties["kind"] as Schema).const;

function mergedKey(name: string, owners: readonly Schema[], kindCount: number): Schema {
  const schemas = owners.map(({ properties }) => properties?.[name] as Schema);
  const constants = schemas.map((schema) => schema.const);
  const [first = {}] = schemas;
  if (constants.every((each) => each !== undefined)) {
    return { ...first, enum: constants } as Schema;
  }
  if (owners.length === kindCount) return first;
  const kinds = owners.map((owner) => code(String(kindOf(owner))));
  return { ...first, description: `For ${kinds.join(" and ")}. ${first.description}` } as Schema;
}

/** Returns the keys right below a place, and those of the mappings in it. Lists of mappings come last. */
function keysOf(output: Schema, input: Schema, prefix: string): Key[] {
  const inputs = (input.properties ?? {}) as Record<string, Schema>;
  return propertiesOf(output).flatMap(([name, schema]: [string, Schema]) => {
    const path = prefix + name;
    const given = inputs[name] ?? {};
    const isRequired = input.required?.includes(name) ?? false;
    const key = { path, schema, isRequired };
    if (schema.properties !== undefined) return [key, ...keysOf(schema, given, `${path}.`)];
    const item = objectIn(schema);
    if (item === null) return [key];
    return [key, ...keysOf(item, objectIn(given) ?? {}, `${path}[].`)];
  });
}

/** The units whose values have a suffix in the file. */
const KINDS: Readonly<Record<string, string>> = { bytes: "size", seconds: "duration" };

const BINARY_UNITS = ["", "KiB", "MiB", "GiB"];

/** Returns a size in the spelling of the file: 200MiB. */
function sizeText(byteCount: number): string {
  let value = byteCount;
  let unit = 0;
  for (; value % 1024 === 0 && unit < BINARY_UNITS.length - 1; unit++) value /= 1024;
  return `${value}${BINARY_UNITS[unit]}`;
}

const SECONDS: readonly (readonly [string, number])[] = [
  ["d", 86_400],
  ["h", 3_600],
  ["m", 60],
  ["s", 1],
];

/** Returns a duration in the spelling of the file: 10m. */
function durationText(seconds: number): string {
  const [unit, length] = SECONDS.find(([, each]) => seconds >= each && seconds % each === 0) ?? [
    "s",
    1,
  ];
  return `${seconds / length}${unit}`;
}

function valueText(value: unknown, { unit }: Schema): string {
  if (typeof value === "number" && unit === "bytes") return sizeText(value);
  if (typeof value === "number" && unit === "seconds") return durationText(value);
  if (Array.isArray(value)) return `[${value.map(String).join(", ")}]`;
  return typeof value === "string" ? value : JSON.stringify(value);
}

const numberText = (value: number, schema: Schema) =>
  (schema.unit ?? "") in KINDS ? valueText(value, schema) : value.toLocaleString("en-US");

function boundsText(schema: Schema): string {
  const { minimum, exclusiveMinimum, maximum } = schema;
  const max = maximum === Number.MAX_SAFE_INTEGER ? undefined : maximum;
  const least = minimum === undefined ? `more than ${exclusiveMinimum}` : minimum;
  const from = typeof least === "number" ? numberText(least, schema) : least;
  if (max !== undefined) return `${from} to ${numberText(max, schema)}`;
  return minimum === undefined || minimum <= 1 ? "" : `at least ${from}`;
}

function typeText(schema: Schema): string {
  const { type, unit, items, enum: values } = schema;
  if (schema.type_text !== undefined) return schema.type_text;
  if (values !== undefined) return values.map((value) => code(String(value))).join(", ");
  if (type === "integer" || type === "number") {
    const kind = KINDS[unit ?? ""] ?? (unit === undefined ? type : `${type}, ${unit}`);
    return [kind, boundsText(schema)].filter((text) => text !== "").join(", ");
  }
  if (type === "array") {
    return objectIn(schema) === null ? `list: ${typeText(items as Schema)}` : "list of mappings";
  }
  if (type === "object") return "mapping";
  if (type === "string") return schema.format === "uri" ? "address" : "text";
  return String(type);
}

/** Returns the default. The contents of a mapping, or of a list of mappings, follow in rows of their own. */
function defaultText({ path, schema, isRequired }: Key): string {
  if (isRequired) return "required";
  const { default: value, left_out: leftOut } = schema;
  if (leftOut !== undefined) return leftOut;
  if (value === undefined) throw new Error(`${path}: say in left_out what leaving it out means`);
  const isEmpty = JSON.stringify(value) === "[]" || JSON.stringify(value) === "{}";
  return isEmpty || schema.properties !== undefined ? "none" : code(valueText(value, schema));
}

function textOf({ path, schema }: Key): string {
  const { description, example } = schema;
  if (description === undefined) throw new Error(`${path} has no description`);
  const text = example === undefined ? description : `${description} Example: ${code(example)}`;
  return text.replaceAll("|", "\\|");
}

const keyTable = (keys: readonly Key[], isLive: (path: string) => boolean): string =>
  table(
    ["Key", "Type", "Default", "Reload", "What it does"],
    keys.map((key) => [
      code(key.path),
      typeText(key.schema),
      defaultText(key),
      isLive(key.path) ? "yes" : "restart",
      textOf(key),
    ]),
  );

const isLive = (path: string) =>
  TAKES_EFFECT[path.split(/[.[]/)[0] as keyof typeof TAKES_EFFECT] === "at_once";

const hasKeys = (schema: Schema) => schema.properties !== undefined || objectIn(schema) !== null;

/** Returns a section for each group of keys. The keys at the top without a group come first. */
function sections(): string {
  const properties = propertiesOf(OUTPUT) as [string, Schema][];
  const single = properties.filter(([, schema]) => !hasKeys(schema)).map(([name]) => name);
  const groups = properties.filter(([, schema]) => hasKeys(schema)).map(([name]) => name);
  const keys = keysOf(OUTPUT, INPUT, "");
  const isIn = (group: string) => (key: Key) =>
    key.path === group || key.path.startsWith(`${group}.`) || key.path.startsWith(`${group}[]`);
  const top = keyTable(
    keys.filter(({ path }) => single.includes(path)),
    isLive,
  );
  const rest = groups.map((group) => {
    const [head, ...inside] = keys.filter(isIn(group)) as [Key, ...Key[]];
    const { left_out: leftOut } = head.schema;
    const without = leftOut === undefined ? "" : ` Left out: ${leftOut}.`;
    return `## \`${group}\`\n\n${textOf(head)}${without}\n\n${keyTable(inside, isLive)}`;
  });
  return [`## Top level\n\n${top}`, ...rest].join("\n\n");
}

const flagTable = (): string =>
  table(
    ["Flag", "Environment", "Key in the file", "What it sets"],
    Object.values(OVERRIDES).map(({ flag, variable, key, text }) => [
      code(flag),
      code(variable),
      key === null ? "" : code(key),
      text,
    ]),
  );

/** Returns the page. */
export const configurationPage =
  (): string => `This page is generated from the code by \`npm run generate\`.

# Configuration

batchd reads one YAML file, named by \`--config\` or \`BATCHD_CONFIG\`. Every key is optional unless its table says
*required*. [\`examples/batchd.yaml\`](../examples/batchd.yaml) is a file to start from.

- Flags beat environment variables, which beat the file. \`\${NAME}\` in any text of the file is taken from the
  environment. \`$NAME\` alone and \`\${NAME:-default}\` are refused: they would become values as they stand.
- A key that batchd does not know, a value that is not allowed or a variable that is not set refuses to start. All
  problems are reported together.
- A path that is not absolute begins at the folder in which the command is started, wherever the file is.
- A *size* is a number of bytes, or has a unit: \`200MB\` is decimal (200,000,000 bytes), \`200MiB\` is binary
  (209,715,200 bytes).
- A *duration* is a number of seconds, or has a unit: \`500ms\`, \`30s\`, \`10m\`, \`2h\`, \`1d\`.
- *Reload* says whether a running server takes a changed value from the file. [\`operating.md\`](operating.md#change-the-configuration)
  says how.
- \`npx node src/main.ts check --config batchd.yaml\` prints what batchd makes of a file, without secrets.

## Flags and environment

${flagTable()}

\`--upstream\` adds one upstream named \`upstream\`, without a key, for every model that no other upstream lists.
\`serve\` also takes \`--role\`, which says what the process does; on SQLite \`all\` is the only one that works.

${sections()}
`;
