/**
 * What belongs to another project is as unknown as what never was.
 *
 * The matrix is made of the routes of the app, the places in which a request names something, and one thing of each kind
 * that another project has. A route without a row fails, and so does a path with an id: that place is found by itself.
 */
import { afterAll, beforeAll, describe, expect, expectTypeOf, test } from "vitest";
import type { BatchId, FileId, UntrustedId } from "../../src/batch/batch.ts";
import type { Store } from "../../src/store/store.ts";
import { routesOfApp } from "../support/routes.ts";
import { chatLine, type TestService } from "../support/service.ts";
import {
  type Asked,
  ask,
  batchBody,
  fileForm,
  partForm,
  SECRET,
  SHARED_KEY,
  seenBy,
  startTenants,
  stateOfAlpha,
  thingsOfAlpha,
  unknownLike,
  uploadBody,
} from "../support/tenants.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

/** The places where a request names something, besides its path, by their names. */
type Places = Readonly<Record<string, (id: string) => Partial<Asked>>>;

const BETAS_NAME = "input-of-beta.jsonl";
const betasLine = `${chatLine("line-of-beta", "Hello")}\n`;
const betasForm = (purpose: string) => fileForm(purpose, betasLine, BETAS_NAME);

interface Row {
  readonly places?: Places;
  /** It is there for a route that needs one. */
  readonly body?: () => string | FormData;
}

const after: Places = {
  after: (id) => ({ path: `?after=${id}` }),
  "after, oldest first": (id) => ({ path: `?after=${id}&order=asc` }),
};

const interactive: Row = {
  body: () => "{}",
  places: {
    model: (id) => ({ body: JSON.stringify({ model: id, messages: [] }) }),
    "file in the body": (id) => ({ body: JSON.stringify({ model: "none", file_id: id }) }),
  },
};

const ROWS: Readonly<Record<string, Row>> = {
  "GET /health": {},
  "GET /ready": {},
  "GET /metrics": {},
  "GET /docs": {},
  "GET /openapi.yaml": {},
  "GET /v1/files": { places: { ...after, purpose: (id) => ({ path: `?purpose=${id}` }) } },
  "POST /v1/files": {
    places: {
      purpose: (id) => ({ body: betasForm(id) }),
      field: (id) => {
        const body = betasForm("batch");
        body.set(id, "value");
        return { body };
      },
    },
  },
  "GET /v1/files/:id": {},
  "DELETE /v1/files/:id": {},
  "GET /v1/files/:id/content": {
    places: { range: (id) => ({ path: `/${id}/content`, headers: { range: "bytes=0-3" } }) },
  },
  "POST /v1/uploads": {},
  "POST /v1/uploads/:id/parts": { body: () => partForm(betasLine) },
  "POST /v1/uploads/:id/complete": { body: () => JSON.stringify({ part_ids: [] }) },
  "POST /v1/uploads/:id/cancel": {},
  "GET /v1/batches": {
    places: {
      ...after,
      "after, filtered": (id) => ({ path: `?after=${id}&status=completed` }),
      model: (id) => ({ path: `?model=${id}` }),
      metadata: (id) => ({ path: `?metadata[id]=${id}` }),
    },
  },
  "POST /v1/batches": {
    places: {
      input_file_id: (id) => ({ body: batchBody(id) }),
      "x_batchd.default_model": (id) => ({
        body: batchBody("file-unknown", { x_batchd: { default_model: id } }),
      }),
      "x_batchd.from.batch": (id) => ({
        body: batchBody("", { input_file_id: undefined, x_batchd: { from: { batch: id } } }),
      }),
      metadata: (id) => ({ body: batchBody("file-unknown", { metadata: { file: id } }) }),
    },
  },
  "GET /v1/batches/:id": {},
  "DELETE /v1/batches/:id": {
    places: {
      path: (id) => ({ path: `/${id}` }),
      "path, with its input": (id) => ({ path: `/${id}?files=input` }),
      files: (id) => ({ path: `/batch_unknown?files=${id}` }),
    },
  },
  "GET /v1/batches/:id/output": {},
  "GET /v1/batches/:id/errors": {},
  "GET /v1/batches/:id/lines": {
    places: {
      path: (id) => ({ path: `/${id}/lines` }),
      custom_id: (id) => ({ path: `/batch_unknown/lines?custom_id=${id}` }),
    },
  },
  "GET /v1/batches/:id/failures": {},
  "GET /v1/batches/:id/run": {},
  "GET /v1/batches/:id/progress": {},
  "POST /v1/batches/:id": { body: () => JSON.stringify({ priority: 1 }) },
  "POST /v1/batches/:id/cancel": {},
  "POST /v1/batches/:id/pause": {},
  "POST /v1/batches/:id/resume": {},
  "POST /v1/batches/:id/deliveries": { body: () => JSON.stringify({ location: "share" }) },
  "GET /v1/batches/:id/deliveries": {
    places: {
      path: (id) => ({ path: `/${id}/deliveries` }),
      after: (id) => ({ path: `/batch_unknown/deliveries?after=${id}` }),
    },
  },
  "GET /v1/batches/:id/deliveries/:delivery": {},
  "POST /v1/batches/:id/deliveries/:delivery/cancel": {},
  "GET /v1/usage": { places: { project: (id) => ({ path: `?project=${id}` }) } },
  "GET /v1/models": {},
  "GET /v1/models/:model{.+}": {},
  "DELETE /v1/models/:model{.+}": {},
  // No project has a key with the scope `admin`, so all answers are the same refusal.
  "POST /v1/admin/keys": {
    places: {
      project: (id) => ({ body: JSON.stringify({ name: "a", project: id }) }),
      name: (id) => ({ body: JSON.stringify({ name: id }) }),
    },
  },
  "GET /v1/admin/keys": { places: { after: (id) => ({ path: `?after=${id}` }) } },
  "DELETE /v1/admin/keys/:id": {},
  "POST /v1/admin/projects": {
    places: { name: (id) => ({ body: JSON.stringify({ name: id }) }) },
  },
  "GET /v1/admin/projects": { places: { after: (id) => ({ path: `?after=${id}` }) } },
  "DELETE /v1/admin/projects/:id": {},
  "GET /v1/admin/upstreams": {},
  "POST /v1/chat/completions": interactive,
  "POST /v1/completions": interactive,
  "POST /v1/embeddings": interactive,
  "POST /v1/responses": interactive,
  "POST /v1/moderations": interactive,
};

let upstream: TestUpstream;
let service: TestService;
let foreign: Record<string, string>;
let before: Record<string, string>;
/** An upload of beta that waits for its completion. */
let ownUpload: string;

beforeAll(async () => {
  upstream = await startUpstream();
  service = await startTenants(upstream);
  foreign = await thingsOfAlpha(service, upstream);
  before = await stateOfAlpha(service, foreign);
  ownUpload = await newUpload();
});
afterAll(async () => {
  upstream.release();
  await service[Symbol.asyncDispose]();
  await upstream[Symbol.asyncDispose]();
});

async function newUpload(): Promise<string> {
  const body = uploadBody(betasLine.length);
  const response = await ask(service, "beta", { method: "POST", path: "/v1/uploads", body });
  return ((await response.json()) as { id: string }).id;
}

const PER_REQUEST = ["x-request-id", "openai-processing-ms", "date"];

/** What beta gets, without what differs between any two requests; `id` is the one asked for. */
async function answerTo(asked: Asked, id: string): Promise<string> {
  const response = await ask(service, "beta", asked);
  const headers = [...response.headers].filter(([name]) => !PER_REQUEST.includes(name));
  const body = await response.text();
  const first = comparable(JSON.stringify([response.status, headers, body]), id);
  const batch = /^\{"id":"(batch_\w+)"/.exec(body)?.[1];
  if (response.status !== 200 || batch === undefined) return first;
  await service.ended(batch).catch(() => {});
  const ended = await ask(service, "beta", { method: "GET", path: `/v1/batches/${batch}` });
  return `${first}\n${comparable(await ended.text(), id)}`;
}

/** Ids that were made for the answer, and times, are its own. */
const comparable = (text: string, id: string) =>
  text
    .replaceAll(id, "ASKED")
    .replaceAll(/\b(?:file-\w{22}|(?:batch|upload|part)_[0-9a-f]{32})/g, "MADE")
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

test("every route of the app has its row in the matrix", () => {
  expect(Object.keys(ROWS).sort()).toEqual(routesOfApp());
});

for (const [route, { places = {}, body }] of Object.entries(ROWS)) {
  const [method = "", pattern = ""] = route.split(" ");
  const base = pattern.replace(/\/:.*$/, "");
  const named: Record<string, (id: string) => Asked> = {};
  if (pattern.includes("/:")) {
    named["path"] = (id) => ({
      method,
      path: pattern.replace(/:\w+(\{.*\})?/, id),
      body: body?.(),
    });
  }
  for (const [place, request] of Object.entries(places)) {
    named[place] = (id) => {
      const { path = "", ...more } = request(id);
      return { method, path: base + path, body: body?.(), ...more };
    };
  }
  for (const [place, request] of Object.entries(named)) {
    test(`${route}: what another project has is unknown, by ${place}`, async () => {
      for (const [what, id] of Object.entries(foreign)) {
        const unknown = unknownLike(id);
        const wanted = await answerTo(request(unknown), unknown);
        expect(await answerTo(request(id), id), what).toBe(wanted);
      }
    });
  }
}

test("parts of another project are as unknown as parts that never were", async () => {
  const complete = (ids: readonly string[]) => ({
    method: "POST",
    path: `/v1/uploads/${ownUpload}/complete`,
    body: JSON.stringify({ part_ids: ids }),
  });
  for (const [what, id] of Object.entries(foreign)) {
    const unknown = unknownLike(id);
    const wanted = await answerTo(complete([unknown]), unknown);
    expect(wanted, what).toContain("does not belong to the upload");
    expect(await answerTo(complete([id]), id), what).toBe(wanted);
  }
});

describe("an idempotency key of another project", () => {
  test.each([
    ["/v1/files", () => betasForm("batch")],
    ["/v1/uploads", () => uploadBody(1)],
    ["/v1/batches", () => batchBody(foreign["input file"] as string)],
  ])("is a new key for %s", async (path, body) => {
    const asked = (key: string): Asked => ({
      method: "POST",
      path,
      body: body(),
      headers: { "idempotency-key": key },
    });
    const key = path === "/v1/batches" ? SHARED_KEY : `${SHARED_KEY}-${path}`;
    if (path !== "/v1/batches") await ask(service, "alpha", asked(key));
    const unused = crypto.randomUUID();
    expect(await answerTo(asked(key), key)).toBe(await answerTo(asked(unused), unused));
  });
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
  expect(seen).toContain(BETAS_NAME);
  expect(seen).not.toContain(SECRET);
  expect(JSON.stringify(before)).toContain(SECRET);
});
