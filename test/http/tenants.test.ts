/**
 * What belongs to another project is as unknown as what never was.
 *
 * The matrix is made of the places in which the OpenAPI document lets a request name something, and one thing of each kind that
 * another project has. The document has the routes of the app (`test/contract/openapi.test.ts`), so a new route, parameter or
 * field is a place of the matrix by itself.
 */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, expectTypeOf, test } from "vitest";
import type { BatchId, FileId, UntrustedId } from "../../src/batch/batch.ts";
import type { Store } from "../../src/store/store.ts";
import { operations, type Place } from "../support/api-places.ts";
import { chatLine, type TestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import {
  type Asked,
  ask,
  batchBody,
  fileForm,
  NAME_OF_BETA,
  SECRET,
  SHARE,
  SINGLE_SCOPES,
  seenBy,
  startTenants,
  stateOfAlpha,
  thingsOfAlpha,
  thingsOfBeta,
  unknownLike,
  uploadBody,
} from "../support/tenants.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

let upstream: TestUpstream;
let service: TestService;
let foreign: Record<string, string>;
let own: Record<string, string>;
/** An unknown text for each of the foreign ones. What beta has written anywhere, it has written of both. */
let unknownFor: Record<string, string>;
let before: Record<string, string>;
const folder = temporaryFolder("batchd-tenants-");
const alphas = temporaryFolder("batchd-tenants-");

beforeAll(async () => {
  upstream = await startUpstream();
  writeFileSync(join(folder.path, inPlace.path), `${chatLine("a", "Hello")}\n`);
  service = await startTenants(upstream, { folder: folder.path, alphas: alphas.path });
  own = await thingsOfBeta(service);
  foreign = await thingsOfAlpha(service, upstream);
  unknownFor = Object.fromEntries(
    Object.entries(foreign).map(([what, id]) => [what, unknownLike(id)]),
  );
  before = await stateOfAlpha(service, foreign);
});
afterAll(async () => {
  upstream.release();
  await service[Symbol.asyncDispose]();
  await upstream[Symbol.asyncDispose]();
  folder[Symbol.dispose]();
  alphas[Symbol.dispose]();
});

const KEY_PLACE = "header idempotency-key";
const inPlace = { location: SHARE, path: "in.jsonl" };
/** What a request needs beside the text of a place, so that it comes as far as the look for what the text names. */
const BESIDE: Readonly<Record<string, object>> = {
  "POST /v1/files": { purpose: "batch", x_batchd: { input: inPlace } },
  "POST /v1/uploads/{upload_id}/complete": { part_ids: [] },
  "POST /v1/batches/{batch_id}": {},
  "POST /v1/batches/{batch_id}/deliveries": { location: SHARE },
  "x_batchd.input": { endpoint: "/v1/chat/completions", x_batchd: { input: inPlace } },
  "x_batchd.from": { endpoint: "/v1/chat/completions", x_batchd: { from: {} } },
  "x_batchd.deliver": {
    ...JSON.parse(batchBody("file-unknown")),
    x_batchd: { deliver: [{ location: SHARE }] },
  },
};

const OPERATIONS = operations({ inPath: () => own, beside: (place) => BESIDE[place] });

const place = (name: string, request: Place["with"]): Place => ({
  name,
  isPath: false,
  with: request,
});
const get = (path: string, headers: Record<string, string> = {}) => ({
  method: "GET",
  path,
  headers,
});
const at = (path: string) => (body: string | FormData) => ({ method: "POST", path, body });

/** Places that the document does not have as a text of its own, or that need something else beside them. */
const MORE: Readonly<Record<string, readonly Place[]>> = {
  "GET /v1/files": [
    place("query after, oldest first", (text) => get(`/v1/files?after=${text}&order=asc`)),
    place("query purpose", (text) => get(`/v1/files?purpose=${text}`)),
  ],
  "POST /v1/files": [
    place("form purpose", (text) => at("/v1/files")(fileForm(text, "{}"))),
    place("form of another name", (text) => {
      const body = fileForm("batch", "{}");
      body.set(text, "value");
      return at("/v1/files")(body);
    }),
  ],
  "GET /v1/files/{file_id}/content": [
    place("path, with a range", (text) => get(`/v1/files/${text}/content`, { range: "bytes=0-3" })),
    place("path, with a condition", (text) =>
      get(`/v1/files/${text}/content`, { "if-match": `"${foreign["SHA-256 of a file"]}"` }),
    ),
  ],
  "GET /v1/batches": [
    place("query after, filtered", (text) => get(`/v1/batches?after=${text}&status=completed`)),
  ],
  "DELETE /v1/batches/{batch_id}": [
    place("path, with its input", (text) => ({
      method: "DELETE",
      path: `/v1/batches/${text}?files=input`,
    })),
    place("query files", (text) => ({
      method: "DELETE",
      path: `/v1/batches/batch_unknown?files=${text}`,
    })),
  ],
  "POST /v1/chat/completions": [
    place("body of another name", (text) =>
      at("/v1/chat/completions")(JSON.stringify({ model: "none", file_id: text })),
    ),
    place("deployment", (text) => at(`/openai/deployments/${text}/chat/completions`)("{}")),
  ],
};

const PER_REQUEST = ["x-request-id", "openai-processing-ms", "date"];

/** What beta gets, without what differs between any two requests; `id` is the one asked for. */
async function answerTo(
  asked: Asked,
  id: string,
  scope?: Parameters<typeof ask>[3],
): Promise<string> {
  const response = await ask(service, "beta", asked, scope);
  const headers = [...response.headers].filter(([name]) => !PER_REQUEST.includes(name));
  const body = await response.text();
  const first = comparable(JSON.stringify([response.status, headers, body]), id);
  const [, made, kind] = /^\{"id":"(\w+)","object":"([\w.]+)"/.exec(body) ?? [];
  if (response.status !== 200 || made === undefined || made === own["batch_id"]) return first;
  if (kind === "batch.delivery") {
    await service.events.reached("delivery.delivered", { delivery: made });
    return first;
  }
  if (kind !== "batch") return first;
  await service.events.reached("batch.failed", { batch: made });
  const ended = await ask(service, "beta", { method: "GET", path: `/v1/batches/${made}` });
  return `${first}\n${comparable(await ended.text(), id)}`;
}

/** Ids that were made for the answer, and times, are its own. */
const comparable = (text: string, id: string) =>
  text
    .replaceAll(id, "ASKED")
    .replaceAll(/\b(?:file-\w{22}|(?:batch|upload|part|delivery)_[0-9a-f]{32})/g, "MADE")
    .replaceAll(/(_at\\?":)\d+/g, "$1TIME")
    .replaceAll(/(queue_position\\?":)\d+/g, "$1PLACE");

/** What of a parameter is an id of a client without its project; a plain string is something else. */
type BareId<
  Parameter,
  Kind extends string = "file" | "batch" | "upload" | "part",
> = Kind extends unknown
  ? Parameter extends unknown
    ? string extends Parameter
      ? never
      : UntrustedId<Kind> extends Parameter
        ? Parameter
        : never
    : never
  : never;

test("no query takes the id of a client without its project, by its type", () => {
  type Bare = { [Method in keyof Store]: BareId<Parameters<Store[Method]>[number]> };
  expectTypeOf<Bare[keyof Store]>().toBeNever();
  expectTypeOf<UntrustedId<"file">>().not.toExtend<FileId>();
  expectTypeOf<UntrustedId<"batch">>().not.toExtend<BatchId>();
  expectTypeOf<BareId<UntrustedId<"file">>>().not.toBeNever();
});

/** What keys with one scope ask for. A scope is looked at before anything that a request names. */
const ONE_OF_EACH = ["input file", "open batch", "delivery", "pending upload"];

/** What beta writes in a body it may see again. */
const mayNotBeWritten = (what: string, { name }: Place) =>
  what === "text of a custom id" && /^(?:body|form)/.test(name);

describe.each(OPERATIONS.filter(({ places }) => places.length > 0))("$name", ({ name, places }) => {
  // A key of a request is tested below, as it has to have been used for the same request.
  const all = [...places.filter((each) => each.name !== KEY_PLACE), ...(MORE[name] ?? [])];
  test.each(all)("what another project has is unknown, by $name", async (asked) => {
    for (const [what, id] of Object.entries(foreign)) {
      if (mayNotBeWritten(what, asked)) continue;
      const unknown = unknownFor[what] as string;
      const scopes = asked.isPath && ONE_OF_EACH.includes(what) ? SINGLE_SCOPES : [];
      for (const scope of [undefined, ...scopes]) {
        const wanted = await answerTo(asked.with(unknown), unknown, scope);
        expect(await answerTo(asked.with(id), id, scope), `${what}, ${scope}`).toBe(wanted);
      }
    }
  });
});

test("parts of another project are as unknown as parts that never were", async () => {
  for (const id of Object.values(foreign)) {
    const path = `/v1/uploads/${own["upload_id"]}/complete`;
    const asked = { method: "POST", path, body: JSON.stringify({ part_ids: [id] }) };
    expect(await answerTo(asked, id)).toContain("does not belong to the upload");
  }
});

describe("an idempotency key of another project", () => {
  const keyed = OPERATIONS.flatMap(({ name, places }) =>
    places.filter((each) => each.name === KEY_PLACE).map((each) => ({ operation: name, ...each })),
  );

  test("may come with all that make something", () => {
    expect(keyed.length).toBeGreaterThan(4);
  });

  test.each(keyed)("is a new key for $operation", async ({ operation, with: asked }) => {
    const key = `key of both for ${operation}`;
    const headers = { "idempotency-key": key };
    const used = { method: "POST", path: "/v1/uploads", body: uploadBody(1), headers };
    expect((await ask(service, "alpha", used)).status).toBe(200);
    const unused = crypto.randomUUID();
    expect(await answerTo(asked(key), key)).toBe(await answerTo(asked(unused), unused));
  });
});

test("the matrix has every kind of place", () => {
  const kinds = new Set(
    OPERATIONS.flatMap(({ places }) => places.map(({ name }) => name.split(" ")[0])),
  );
  expect([...kinds].sort()).toEqual(["body", "form", "header", "path", "query"]);
});

test("a batch over the file of another project fails as one over an unknown file, and runs nothing", async () => {
  const sent = upstream.total;
  const [known, unknown] = await Promise.all(
    [foreign["input file"] as string, unknownLike("file-")].map(async (id) => {
      const asked = { method: "POST", path: "/v1/batches", body: batchBody(id) };
      const created = await ask(service, "beta", asked);
      expect(created.status).toBe(200);
      const { id: batch, status } = (await created.json()) as { id: string; status: string };
      expect(status).toBe("validating");
      await service.events.reached("batch.failed", { batch });
      const ended = await ask(service, "beta", { method: "GET", path: `/v1/batches/${batch}` });
      return comparable(await ended.text(), id);
    }),
  );
  expect(known).toBe(unknown);
  expect(known).toContain("Cannot find file ASKED, or project beta does not have access to it.");
  expect(upstream.total).toBe(sent);
});

test("nothing of a project has changed, or was seen, when another has asked for all of it", async () => {
  expect(await stateOfAlpha(service, foreign)).toEqual(before);
  const complete = {
    method: "POST",
    path: `/v1/uploads/${foreign["pending upload"]}/complete`,
    body: JSON.stringify({ part_ids: [foreign["part of a pending upload"]] }),
  };
  expect((await ask(service, "alpha", complete)).status).toBe(200);
  const seen = await seenBy(service, "beta");
  expect(seen).toContain(NAME_OF_BETA);
  expect(seen).not.toContain(SECRET);
  expect(JSON.stringify(before)).toContain(SECRET);
});
