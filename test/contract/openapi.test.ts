import { describe, expect, test } from "vitest";
import { parse } from "yaml";
import type { z } from "zod";
import { BatchObject, BatchPage, CreateBatch } from "../../src/contract/batch.ts";
import { ErrorEnvelope } from "../../src/contract/error.ts";
import { DeletedFile, FileObject, FilePage } from "../../src/contract/file.ts";
import { ModelList, ModelObject } from "../../src/contract/model.ts";
import { openApiDocument, openApiYaml } from "../../src/contract/openapi.ts";

const SCHEMAS: Readonly<Record<string, z.ZodType>> = {
  Batch: BatchObject,
  BatchPage,
  CreateBatch,
  DeletedFile,
  Error: ErrorEnvelope,
  File: FileObject,
  FilePage,
  Model: ModelObject,
  ModelList,
};

/** Every media type of the document with a named schema, and the examples it shows. */
interface Shown {
  readonly schema: string;
  readonly examples: readonly unknown[];
}

function shownIn(node: unknown): Shown[] {
  if (typeof node !== "object" || node === null) return [];
  const { schema, example, examples } = node as Record<string, unknown>;
  const below = Object.values(node).flatMap(shownIn);
  const ref = (schema as { $ref?: unknown } | undefined)?.$ref;
  if (typeof ref !== "string") return below;
  const named = Object.values((examples ?? {}) as Record<string, { value: unknown }>);
  const all = [...(example === undefined ? [] : [example]), ...named.map(({ value }) => value)];
  return [{ schema: ref.slice(ref.lastIndexOf("/") + 1), examples: all }, ...below];
}

const document = parse(openApiYaml()) as ReturnType<typeof openApiDocument>;

test("the YAML says what the document says", () => {
  expect(document).toEqual(JSON.parse(JSON.stringify(openApiDocument())));
});

test("every route of the API is there", () => {
  const routes = Object.entries(document.paths ?? {}).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`),
  );
  expect(new Set(routes)).toEqual(
    new Set([
      "POST /v1/files",
      "GET /v1/files",
      "GET /v1/files/{file_id}",
      "DELETE /v1/files/{file_id}",
      "GET /v1/files/{file_id}/content",
      "POST /v1/batches",
      "GET /v1/batches",
      "GET /v1/batches/{batch_id}",
      "POST /v1/batches/{batch_id}/cancel",
      "GET /v1/models",
      "GET /v1/models/{model}",
      "GET /health",
      "GET /ready",
    ]),
  );
});

describe("every example is valid for its schema", () => {
  const shown = shownIn(document);

  test("and every schema has one", () => {
    const withExamples = shown.filter(({ examples }) => examples.length > 0);
    expect(new Set(withExamples.map(({ schema }) => schema))).toEqual(
      new Set(Object.keys(SCHEMAS)),
    );
  });

  test.each(Object.entries(SCHEMAS))("%s", (name, schema) => {
    const examples = shown.filter((each) => each.schema === name).flatMap((each) => each.examples);
    expect(examples.flatMap((example) => schema.safeParse(example).error?.issues ?? [])).toEqual(
      [],
    );
  });
});

test("every reference leads somewhere", () => {
  const refs = [...openApiYaml().matchAll(/\$ref: "#\/components\/(\w+)\/(\w+)"/g)];
  expect(refs.length).toBeGreaterThan(20);
  const components = document.components as Record<string, Record<string, unknown>>;
  expect(refs.filter(([, kind = "", name = ""]) => !(name in (components[kind] ?? {})))).toEqual(
    [],
  );
});

test("operations have names of their own", () => {
  const names = [...openApiYaml().matchAll(/operationId: (\w+)/g)].map(([, name]) => name);
  expect(new Set(names).size).toBe(names.length);
});
