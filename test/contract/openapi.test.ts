import { validate } from "@readme/openapi-parser";
import { Validator } from "@seriousme/openapi-schema-validator";
import { describe, expect, test } from "vitest";
import { parse } from "yaml";
import type { z } from "zod";
import { BatchObject, BatchPage, DeletedBatch } from "../../src/contract/batch.ts";
import { CreateBatch, UpdateBatch } from "../../src/contract/create-batch.ts";
import { CreateDelivery, DeliveryObject, DeliveryPage } from "../../src/contract/delivery.ts";
import { ErrorEnvelope } from "../../src/contract/error.ts";
import { EVENT_TYPES } from "../../src/contract/event.ts";
import { CopyFile, DeletedFile, FileObject, FilePage } from "../../src/contract/file.ts";
import { CreatedKey, CreateKey, DeletedKey, KeyObject, KeyPage } from "../../src/contract/key.ts";
import { BatchLineList, FailureList } from "../../src/contract/lines.ts";
import { ModelList, ModelObject } from "../../src/contract/model.ts";
import { openApiDocument, openApiYaml } from "../../src/contract/openapi.ts";
import { BatchEventObject } from "../../src/contract/openapi-webhooks.ts";
import { BatchProgress } from "../../src/contract/progress.ts";
import {
  DeletedProject,
  ProjectObject,
  ProjectPage,
  PutProject,
} from "../../src/contract/project.ts";
import { RunRecord } from "../../src/contract/run.ts";
import {
  CompleteUpload,
  CreateUpload,
  UploadObject,
  UploadPartObject,
} from "../../src/contract/upload.ts";
import { UpstreamList } from "../../src/contract/upstream.ts";
import { UsageList } from "../../src/contract/usage.ts";
import { CATALOGUE } from "../../src/errors.ts";
import { routesOfApp } from "../support/routes.ts";
import { chatLine, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const SCHEMAS: Readonly<Record<string, z.ZodType>> = {
  Batch: BatchObject,
  BatchEvent: BatchEventObject,
  BatchPage,
  BatchLineList,
  FailureList,
  BatchProgress,
  RunRecord,
  CompleteUpload,
  CopyFile,
  CreateBatch,
  CreateDelivery,
  Delivery: DeliveryObject,
  DeliveryPage,
  UpdateBatch,
  CreatedKey,
  CreateKey,
  CreateUpload,
  DeletedBatch,
  DeletedFile,
  DeletedKey,
  DeletedProject,
  Error: ErrorEnvelope,
  File: FileObject,
  FilePage,
  Key: KeyObject,
  KeyPage,
  Model: ModelObject,
  ModelList,
  Project: ProjectObject,
  ProjectPage,
  PutProject,
  Upload: UploadObject,
  UploadPart: UploadPartObject,
  UpstreamList,
  UsageList,
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

test("its routes are those that the server has, and no others", () => {
  const unnamed = (path: string) => path.replaceAll(/\{\w+\}|:\w+(\{.+?\})?/g, "{}");
  const documented = Object.entries(document.paths ?? {}).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => `${method.toUpperCase()} ${unnamed(path)}`),
  );
  const mounted = routesOfApp().map(unnamed);
  expect(documented.length).toBeGreaterThan(15);
  expect(new Set(documented)).toEqual(new Set(mounted));
});

describe("it is valid OpenAPI 3.1", () => {
  test("for a validator by the schema of OpenAPI", async () => {
    const validator = new Validator();
    const result = await validator.validate(openApiYaml());
    expect(result).toEqual({ valid: true });
    expect(validator.version).toBe("3.1");
  });

  test("for a validator that follows references and compares operations", async () => {
    const result = await validate(parse(openApiYaml()));
    expect(result).toMatchObject({ valid: true, warnings: [] });
  });

  test("and what is broken is found by both", async () => {
    const broken = parse(openApiYaml());
    broken.paths["/v1/batches"].get.operationId = broken.paths["/v1/files"].get.operationId;
    broken.paths["/v1/files"].get.responses["200"].headers["x-request-id"] = { example: 5 };
    expect(await validate(structuredClone(broken))).toMatchObject({ valid: false });
    expect(await new Validator().validate(broken)).toMatchObject({ valid: false });
  });
});

interface Operation {
  readonly operationId?: string;
  readonly summary?: string;
  readonly parameters?: readonly { readonly name: string; readonly in: string }[];
  readonly responses: Readonly<Record<string, { readonly $ref?: string }>>;
}

const operations = Object.entries(document.paths ?? {}).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => ({
    name: `${method.toUpperCase()} ${path}`,
    path,
    operation: operation as Operation,
  })),
);

describe("every operation", () => {
  const resolved = ({ $ref, ...inline }: { readonly $ref?: string }) => {
    const name = $ref?.slice("#/components/responses/".length) ?? "";
    return ($ref === undefined ? inline : document.components?.responses?.[name]) as {
      readonly description?: string;
      readonly headers?: Readonly<Record<string, unknown>>;
      readonly content?: Readonly<Record<string, { example?: unknown; examples?: unknown }>>;
    };
  };

  test.each(operations)("$name says what it does, takes and answers", ({ path, operation }) => {
    expect(operation.summary).toMatch(/\w/);
    const inPath = (operation.parameters ?? []).filter((parameter) => parameter.in === "path");
    const names = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name);
    expect(inPath.map(({ name }) => name)).toEqual(names);
    for (const [status, answer] of Object.entries(operation.responses)) {
      const { description, headers, content } = resolved(answer);
      expect(description, status).toMatch(/\w/);
      expect(Object.keys(headers ?? {}), status).toContain("x-request-id");
      for (const [type, { example, examples }] of Object.entries(content ?? {})) {
        if (/json|octet/.test(type)) expect(example ?? examples, `${status} ${type}`).toBeDefined();
      }
    }
    if (path.startsWith("/v1/")) {
      // There is no model that a client could delete.
      const successes = operation.operationId === "deleteModel" ? [] : ["200"];
      expect(Object.keys(operation.responses)).toEqual(
        expect.arrayContaining([...successes, "401", "4XX", "5XX"]),
      );
    }
  });
});

test("a body with a field that the server refuses is not valid, nor is a key without a scope", () => {
  const { schemas = {} } = document.components ?? {};
  const bodies = shownIn(
    Object.values(document.paths ?? {}).map((methods) =>
      Object.values(methods).map(
        (operation) => (operation as { requestBody?: unknown }).requestBody,
      ),
    ),
  );
  const names = [...new Set(bodies.map(({ schema }) => schema))];
  expect(names.length).toBeGreaterThan(5);
  for (const name of names) {
    expect(schemas[name], name).toMatchObject({ additionalProperties: false });
  }
  expect(schemas["CreateKey"]).toMatchObject({
    properties: { scopes: { minItems: 1, uniqueItems: true } },
  });
});

test("a filter by metadata takes any key", async () => {
  const { parameters = [] } = document.paths?.["/v1/batches"]?.get ?? {};
  expect(parameters).toContainEqual(
    expect.objectContaining({
      ...{ in: "query", name: "metadata", style: "deepObject", explode: true },
      schema: expect.objectContaining({ additionalProperties: { type: "string", maxLength: 512 } }),
    }),
  );
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const { id } = await service.openai.batches.create({
    input_file_id: await service.upload([chatLine("a", "Hello")]),
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
    metadata: { team: "search" },
  });
  const idsOf = async (team: string) => {
    const query = { "metadata[team]": team };
    const { data } = await service.openai.batches.list({}, { query });
    return data.map((batch) => batch.id);
  };
  expect(await idsOf("search")).toEqual([id]);
  expect(await idsOf("ads")).toEqual([]);
  await service.ended(id);
});

test.each(["output", "errors"])(
  "the header with the status of the batch is one of /%s",
  async (rows) => {
    await using upstream = await startUpstream();
    await using service = await startTestService({ upstreamUrl: upstream.url });
    const { id } = await service.run([chatLine("a", "Hello")]);
    const { headers } = await fetch(`${service.url}/v1/batches/${id}/${rows}`);
    const described = document.paths?.[`/v1/batches/{batch_id}/${rows}`]?.get?.responses?.["200"];
    expect(headers.get("x-batch-status")).toBe("completed");
    expect(Object.keys(described?.headers ?? {})).toContain("x-batch-status");
  },
);

test("every error that a client can meet has its status somewhere", () => {
  const told = new Set(operations.flatMap(({ operation }) => Object.keys(operation.responses)));
  const ranges: Readonly<Record<number, string>> = {
    405: "4XX",
    408: "4XX",
    421: "4XX",
    431: "4XX",
    500: "5XX",
    503: "5XX",
  };
  for (const { status } of Object.values(CATALOGUE)) {
    expect(told, String(status)).toContain(ranges[status] ?? String(status));
  }
});

test("each event is a webhook, signed as receivers expect", () => {
  expect(Object.keys(document.webhooks ?? {})).toEqual([...EVENT_TYPES]);
  for (const [type, { post }] of Object.entries(document.webhooks ?? {})) {
    const { requestBody, parameters } = post as unknown as {
      requestBody: { content: { "application/json": { example: { type: string } } } };
      parameters: { name: string; required: boolean }[];
    };
    expect(requestBody.content["application/json"].example.type).toBe(type);
    expect(parameters.map(({ name, required }) => [name, required])).toEqual([
      ["webhook-id", true],
      ["webhook-timestamp", true],
      ["webhook-signature", true],
    ]);
  }
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
