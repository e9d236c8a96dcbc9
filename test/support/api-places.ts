/**
 * Every place in which a request of the API names something, found in the OpenAPI document: the parameters of paths, queries
 * and headers, and the texts of bodies. A new route, parameter or field is therefore a new place, without a word in a test.
 */
import { openApiDocument } from "../../src/contract/openapi.ts";

/** A request in which one place has a text of the caller. */
export interface PlaceRequest {
  readonly method: string;
  readonly path: string;
  readonly headers?: Record<string, string>;
  readonly body?: string | FormData;
}

export interface Place {
  /** Where the text stands, such as `path batch_id` or `body x_batchd.from.batch`. */
  readonly name: string;
  readonly isPath: boolean;
  readonly with: (text: string) => PlaceRequest;
}

export interface Operation {
  /** Such as `GET /v1/files/{file_id}`. */
  readonly name: string;
  readonly method: string;
  readonly path: string;
  readonly places: readonly Place[];
}

export interface Samples {
  /** What stands for the other parameters of a path, by their names. */
  readonly inPath: () => Readonly<Record<string, string>>;
  /** What has to stand beside a text of a body, by the operation or by the path of the text. */
  readonly beside: (place: string) => object | undefined;
}

interface Schema {
  readonly $ref?: string;
  readonly type?: string | readonly string[];
  readonly format?: string;
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly anyOf?: readonly Schema[];
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly additionalProperties?: boolean | Schema;
  readonly items?: Schema;
}

interface Parameter {
  readonly in: string;
  readonly name: string;
  readonly style?: string;
  readonly schema: Schema;
}

interface Described {
  readonly parameters?: readonly Parameter[];
  readonly requestBody?: {
    readonly content: Readonly<Record<string, { readonly schema: Schema; example?: object }>>;
  };
}

const document = JSON.parse(JSON.stringify(openApiDocument())) as {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Described>>>>;
  readonly components: { readonly schemas: Readonly<Record<string, Schema>> };
};

const resolved = ({ $ref, ...inline }: Schema): Schema =>
  $ref === undefined ? inline : (document.components.schemas[$ref.split("/").at(-1) ?? ""] ?? {});

/** Whether a client may write any text there. */
const isFreeText = ({ type, enum: some, const: one }: Schema) =>
  [type].flat().includes("string") && some === undefined && one === undefined;

/** Returns one parameter for each that a request writes: a map is written as `name[key]`. */
function writtenAs(parameter: Parameter): Parameter {
  const { style, name, schema } = parameter;
  const { additionalProperties } = resolved(schema);
  return style === "deepObject" && typeof additionalProperties === "object"
    ? { in: parameter.in, name: `${name}[key]`, schema: additionalProperties }
    : parameter;
}

const JSON_TYPE = { "content-type": "application/json" };

type Key = string | number;

/** Returns where a body may have texts. A list has one in its first element, a map under some name. */
function textsIn(schema: Schema, at: readonly Key[] = []): (readonly Key[])[] {
  const { anyOf = [], properties = {}, additionalProperties, items, ...own } = resolved(schema);
  return [
    ...(isFreeText(own) ? [at] : []),
    ...anyOf.flatMap((each) => textsIn(each, at)),
    ...Object.entries(properties).flatMap(([name, each]) => textsIn(each, [...at, name])),
    ...(typeof additionalProperties === "object"
      ? textsIn(additionalProperties, [...at, "name"])
      : []),
    ...(items === undefined ? [] : textsIn(items, [...at, 0])),
  ];
}

/** Returns a copy of a body with a text in one place. */
function withText(body: unknown, [key, ...rest]: readonly Key[], text: string): unknown {
  if (key === undefined) return text;
  if (typeof key === "number") return [withText(Array.isArray(body) ? body[0] : {}, rest, text)];
  const members = (body ?? {}) as Readonly<Record<string, unknown>>;
  return { ...members, [key]: withText(members[key], rest, text) };
}

function formWith(texts: readonly (readonly Key[])[], place: Key, text: string): FormData {
  const form = new FormData();
  for (const [name = ""] of texts) {
    const isFile = ["file", "data"].includes(String(name));
    const value = name === place ? text : name === "purpose" ? "user_data" : "";
    if (isFile) form.set(String(name), new Blob([value]), "a.txt");
    else if (name === place || name === "purpose") form.set(String(name), value);
  }
  return form;
}

/** Returns all operations of the document with their places. */
export const operations = (samples: Samples): Operation[] =>
  Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([lower, described]) => {
      const method = lower.toUpperCase();
      const name = `${method} ${path}`;
      return { name, method, path, places: placesOf({ name, method, path }, described, samples) };
    }),
  );

function placesOf(
  { name, method, path }: Pick<Operation, "name" | "method" | "path">,
  { parameters = [], requestBody }: Described,
  { inPath, beside }: Samples,
): Place[] {
  const filled = (texts: Readonly<Record<string, string>> = {}) =>
    path.replaceAll(/\{(\w+)\}/g, (_, each: string) => texts[each] ?? inPath()[each] ?? each);
  const { schema, example = {} } = requestBody?.content["application/json"] ?? {};
  const base = () => beside(name) ?? example;
  const plain = () => ({
    method,
    path: filled(),
    ...(schema !== undefined && { headers: JSON_TYPE, body: JSON.stringify(base()) }),
  });
  const free = parameters.map(writtenAs).filter((each) => isFreeText(resolved(each.schema)));
  const inPaths = free.filter((each) => each.in === "path").map((each) => each.name);
  const together = inPaths.length > 1 ? [inPaths] : [];
  const form = requestBody?.content["multipart/form-data"]?.schema;
  const formTexts = form === undefined ? [] : textsIn(form);
  const place = (where: string, request: Place["with"]) => ({
    name: where,
    isPath: where.startsWith("path "),
    with: request,
  });
  return [
    ...[...inPaths.map((each) => [each]), ...together].map((names) =>
      place(`path ${names.join(" and ")}`, (text) => ({
        ...plain(),
        path: filled(Object.fromEntries(names.map((each) => [each, text]))),
      })),
    ),
    ...free
      .filter((each) => each.in === "query")
      .map((each) =>
        place(`query ${each.name}`, (text) => ({
          ...plain(),
          path: `${filled()}?${each.name}=${encodeURIComponent(text)}`,
        })),
      ),
    ...free
      .filter((each) => each.in === "header")
      .map((each) =>
        place(`header ${each.name}`, (text) => {
          const { headers, ...rest } = plain();
          return { ...rest, headers: { ...headers, [each.name]: text } };
        }),
      ),
    ...(schema === undefined ? [] : textsIn(schema)).map((at) =>
      place(`body ${at.join(".")}`, (text) => {
        const body = beside(at.slice(0, 2).join(".")) ?? base();
        return { ...plain(), body: JSON.stringify(withText(body, at, text)) };
      }),
    ),
    ...formTexts.map(([each = ""]) =>
      place(`form ${each}`, (text) => ({
        method,
        path: filled(),
        body: formWith(formTexts, each, text),
      })),
    ),
  ];
}
