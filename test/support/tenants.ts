/** A server with two projects, of which the first has one thing of each kind. */
import { expect } from "vitest";
import { newBatchId, newFileId, newPartId, newUploadId } from "../../src/batch/batch.ts";
import { chatLine, startTestService, type TestService } from "./service.ts";
import type { TestUpstream } from "./upstream.ts";

export type Project = "alpha" | "beta";

/** A text in everything that alpha has, so that a test finds it wherever it must not be. */
export const SECRET = "secret-of-alpha";
export const SHARED_KEY = "key-of-both";

export interface Asked {
  readonly method: string;
  readonly path: string;
  readonly headers?: Record<string, string>;
  readonly body?: string | FormData | undefined;
}

export const startTenants = (upstream: TestUpstream): Promise<TestService> =>
  startTestService({
    config: {
      upstreams: [{ name: "only", base_url: upstream.url, models: ["test-model"] }],
      auth: {
        keys: ["alpha", "beta"].map((name) => ({ name, key: `key-${name}`, project: name })),
      },
    },
  });

/** Sends a request of a project and resolves to the answer. */
export async function ask(
  { url }: TestService,
  project: Project,
  { method, path, headers, body }: Asked,
): Promise<Response> {
  return fetch(url + path, {
    method,
    headers: { authorization: `Bearer key-${project}`, ...headers },
    ...(body === undefined ? {} : { body }),
  });
}

type Wire = { readonly id: string; readonly [key: string]: unknown };

async function made(service: TestService, asked: Asked): Promise<Wire> {
  const response = await ask(service, "alpha", asked);
  expect(response.status, `${asked.method} ${asked.path}`).toBe(200);
  return (await response.json()) as Wire;
}

export const fileForm = (purpose: string, content: string, name = `${SECRET}.jsonl`): FormData => {
  const form = new FormData();
  form.set("purpose", purpose);
  form.set("file", new Blob([content]), name);
  return form;
};

export const partForm = (content: string): FormData => {
  const form = new FormData();
  form.set("data", new Blob([content]), "part");
  return form;
};

export const batchBody = (input_file_id: string, more: object = {}): string =>
  JSON.stringify({
    input_file_id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
    ...more,
  });

export const uploadBody = (bytes: number): string =>
  JSON.stringify({ filename: "a.jsonl", purpose: "batch", bytes, mime_type: "text/jsonl" });

const post = (path: string, body: string | FormData, headers?: Record<string, string>): Asked => ({
  method: "POST",
  path,
  body,
  ...(headers === undefined ? {} : { headers }),
});

const ONE_LINE = `${chatLine(SECRET, "Hello")}\n`;

/**
 * Creates one thing of each kind, in each state in which a client may ask for it. Returns the ids by name; all belong
 * to alpha.
 */
export async function thingsOfAlpha(
  service: TestService,
  upstream: TestUpstream,
): Promise<Record<string, string>> {
  const keyed = { "idempotency-key": SHARED_KEY };
  const input = (await made(service, post("/v1/files", fileForm("batch", ONE_LINE)))).id;
  const other = (await made(service, post("/v1/files", fileForm("user_data", SECRET)))).id;
  const done = (await made(service, post("/v1/batches", batchBody(input), keyed))).id;
  await service.events.reached("batch.completed", { batch: done });
  const { output_file_id: output } = await made(service, {
    method: "GET",
    path: `/v1/batches/${done}`,
  });
  const failing = `${chatLine(SECRET, "[[status 400]]")}\n`;
  const bad = (await made(service, post("/v1/files", fileForm("batch", failing)))).id;
  const refused = (await made(service, post("/v1/batches", batchBody(bad)))).id;
  await service.events.reached("batch.completed", { batch: refused });
  const { error_file_id: errors } = await made(service, {
    method: "GET",
    path: `/v1/batches/${refused}`,
  });
  const failed = (await made(service, post("/v1/batches", batchBody(other)))).id;
  await service.events.reached("batch.failed", { batch: failed });
  upstream.hold();
  const open = (await made(service, post("/v1/batches", batchBody(input)))).id;
  await service.events.reached("batch.started", { batch: open });
  const pending = (await made(service, post("/v1/uploads", uploadBody(ONE_LINE.length)))).id;
  const part = (await made(service, post(`/v1/uploads/${pending}/parts`, partForm(ONE_LINE)))).id;
  const completed = (await made(service, post("/v1/uploads", uploadBody(ONE_LINE.length)))).id;
  const used = (await made(service, post(`/v1/uploads/${completed}/parts`, partForm(ONE_LINE)))).id;
  const complete = JSON.stringify({ part_ids: [used] });
  await made(service, post(`/v1/uploads/${completed}/complete`, complete));
  return {
    "input file": input,
    "file of another purpose": other,
    "output file": output as string,
    "error file": errors as string,
    "completed batch": done,
    "failed batch": failed,
    "open batch": open,
    "pending upload": pending,
    "completed upload": completed,
    "part of a pending upload": part,
    "part of a completed upload": used,
  };
}

/** Returns an unknown id of the same kind, in the form that the server gives to it. */
export function unknownLike(id: string): string {
  const kind = id.split(/[-_]/)[0];
  switch (kind) {
    case "file":
      return newFileId();
    case "batch":
      return newBatchId(Date.now());
    case "upload":
      return newUploadId();
    case "part":
      return newPartId();
    default:
      throw new Error(`what kind of id is ${id}?`);
  }
}

/** Resolves to each file and batch of alpha by name, as alpha sees it, without the values that time changes. */
export async function stateOfAlpha(
  service: TestService,
  things: Readonly<Record<string, string>>,
): Promise<Record<string, string>> {
  const state: Record<string, string> = {};
  for (const [name, id] of Object.entries(things)) {
    const kind = id.startsWith("file-") ? "files" : "batches";
    if (!/^(?:file-|batch_)/.test(id)) continue;
    const get = async (path: string) =>
      (await ask(service, "alpha", { method: "GET", path: `/v1/${kind}/${id}${path}` })).text();
    const content = kind === "files" ? await get("/content") : "";
    state[name] =
      (await get("")).replaceAll(
        /"(?:eta|queue_position)":(?:\d+|null)|"waiting":(?:null|\{[^}]*\})/g,
        "",
      ) + content;
  }
  return state;
}

/** Resolves to everything that a project can see: its lists, and the content of its files. */
export async function seenBy(service: TestService, project: Project): Promise<string> {
  const textOf = async (path: string) =>
    (await ask(service, project, { method: "GET", path })).text();
  const files = await textOf("/v1/files");
  const batches = await textOf("/v1/batches?limit=100");
  const ids = (JSON.parse(files) as { data: Wire[] }).data.map(({ id }) => id);
  const contents = await Promise.all(ids.map((id) => textOf(`/v1/files/${id}/content`)));
  return [files, batches, ...contents].join("\n");
}
