/** A server with two projects, of which the first has one thing of each kind. */
import { createHash, randomInt } from "node:crypto";
import { expect } from "vitest";
import { newBatchId, newFileId, newPartId, newUploadId } from "../../src/batch/batch.ts";
import { newDeliveryId } from "../../src/batch/delivery.ts";
import { SCOPES, type Scope } from "../../src/contract/scope.ts";
import { chatLine, startTestService, type TestService } from "./service.ts";
import type { TestUpstream } from "./upstream.ts";

export type Project = "alpha" | "beta";

/** A text in everything that alpha has, so that a test finds it wherever it must not be. */
export const SECRET = "secret-of-alpha";
/** The name of the file that beta has for its batch. */
export const NAME_OF_BETA = "lines-of-beta.jsonl";
/** The location of both projects, and the one of alpha alone. */
export const SHARE = "share";
const ALPHAS_SHARE = "annex";

export interface Asked {
  readonly method: string;
  readonly path: string;
  readonly headers?: Record<string, string>;
  readonly body?: string | FormData | undefined;
}

/** The scopes that a key of a project may have alone. `admin` is not one of a project. */
export const SINGLE_SCOPES = SCOPES.filter((scope) => scope !== "admin");

const keyOf = (project: Project, scope?: Scope) => ["key", project, scope ?? []].flat().join("-");

const keysOf = (project: Project) => [
  { name: project, key: keyOf(project), project },
  ...SINGLE_SCOPES.map((scope) => {
    const key = keyOf(project, scope);
    return { name: key, key, project, scopes: [scope] };
  }),
];

/** `folder` is the location of both projects, and `alphas` the other one. */
export function startTenants(
  upstream: TestUpstream,
  { folder, alphas }: { readonly folder: string; readonly alphas: string },
): Promise<TestService> {
  const common = { kind: "folder", access: "read-write" };
  return startTestService({
    config: {
      upstreams: [{ name: "only", base_url: upstream.url, models: ["test-model"] }],
      auth: { keys: [...keysOf("alpha"), ...keysOf("beta")] },
      locations: [
        { name: SHARE, path: folder, ...common },
        { name: ALPHAS_SHARE, path: alphas, ...common, projects: ["alpha"] },
      ],
    },
  });
}

/** Sends a request of a project and resolves to the answer. The key has all scopes of clients, or one. */
export async function ask(
  { url }: TestService,
  project: Project,
  { method, path, headers, body }: Asked,
  scope?: Scope,
): Promise<Response> {
  return fetch(url + path, {
    method,
    headers: { authorization: `Bearer ${keyOf(project, scope)}`, ...headers },
    ...(body === undefined ? {} : { body }),
  });
}

type Wire = { readonly id: string; readonly [key: string]: unknown };

async function made(service: TestService, asked: Asked, by: Project = "alpha"): Promise<Wire> {
  const response = await ask(service, by, asked);
  expect(response.status, `${asked.method} ${asked.path}`).toBe(200);
  return (await response.json()) as Wire;
}

export const fileForm = (purpose: string, content: string, name = `${SECRET}.jsonl`): FormData => {
  const form = new FormData();
  form.set("purpose", purpose);
  form.set("file", new Blob([content]), name);
  return form;
};

const partForm = (content: string): FormData => {
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

const post = (path: string, body: string | FormData): Asked => ({ method: "POST", path, body });

const ONE_LINE = `${chatLine(SECRET, "Hello")}\n`;

const remove = (path: string): Asked => ({ method: "DELETE", path });

/** What a project has as every client makes it: a batch that has ended with a delivery, and an upload that is pending. */
async function commonThings(service: TestService, project: Project, input: string) {
  const batch = (await made(service, post("/v1/batches", batchBody(input)), project)).id;
  await service.events.reached("batch.completed", { batch });
  const location = project === "alpha" ? ALPHAS_SHARE : SHARE;
  const deliver = post(`/v1/batches/${batch}/deliveries`, JSON.stringify({ location }));
  const delivery = (await made(service, deliver, project)).id;
  await service.events.reached("delivery.delivered", { delivery });
  const upload = (await made(service, post("/v1/uploads", uploadBody(ONE_LINE.length)), project))
    .id;
  return { batch, delivery, upload };
}

/** Creates the things of beta that its own requests name, by the parameter that names them. */
export async function thingsOfBeta(service: TestService): Promise<Record<string, string>> {
  const lines = fileForm("batch", `${chatLine("line-of-beta", "Hello")}\n`, NAME_OF_BETA);
  const input = (await made(service, post("/v1/files", lines), "beta")).id;
  const { batch, delivery } = await commonThings(service, "beta", input);
  // It has room for all parts of a test.
  const upload = (await made(service, post("/v1/uploads", uploadBody(1_000_000)), "beta")).id;
  return { file_id: input, batch_id: batch, delivery_id: delivery, upload_id: upload };
}

/**
 * Creates one thing of each kind, in each state in which a client may ask for it. Returns the ids by name; all belong
 * to alpha. Its last batch waits for the upstream.
 */
export async function thingsOfAlpha(
  service: TestService,
  upstream: TestUpstream,
): Promise<Record<string, string>> {
  const input = (await made(service, post("/v1/files", fileForm("batch", ONE_LINE)))).id;
  const other = (await made(service, post("/v1/files", fileForm("user_data", SECRET)))).id;
  const { batch: done, delivery, upload: pending } = await commonThings(service, "alpha", input);
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
  const part = (await made(service, post(`/v1/uploads/${pending}/parts`, partForm(ONE_LINE)))).id;
  const completed = (await made(service, post("/v1/uploads", uploadBody(ONE_LINE.length)))).id;
  const used = (await made(service, post(`/v1/uploads/${completed}/parts`, partForm(ONE_LINE)))).id;
  const complete = JSON.stringify({ part_ids: [used] });
  await made(service, post(`/v1/uploads/${completed}/complete`, complete));
  const cancelled = (await made(service, post("/v1/uploads", uploadBody(ONE_LINE.length)))).id;
  await made(service, post(`/v1/uploads/${cancelled}/cancel`, ""));
  const deletedFile = (await made(service, post("/v1/files", fileForm("batch", ONE_LINE)))).id;
  await made(service, remove(`/v1/files/${deletedFile}`));
  const deletedBatch = (await made(service, post("/v1/batches", batchBody(other)))).id;
  await service.events.reached("batch.failed", { batch: deletedBatch });
  await made(service, remove(`/v1/batches/${deletedBatch}`));
  upstream.hold();
  const open = (await made(service, post("/v1/batches", batchBody(input)))).id;
  await service.events.reached("batch.started", { batch: open });
  return {
    "input file": input,
    "file of another purpose": other,
    "output file": output as string,
    "error file": errors as string,
    "deleted file": deletedFile,
    "completed batch": done,
    "failed batch": failed,
    "open batch": open,
    "deleted batch": deletedBatch,
    delivery,
    "pending upload": pending,
    "completed upload": completed,
    "cancelled upload": cancelled,
    "part of a pending upload": part,
    "part of a completed upload": used,
    location: ALPHAS_SHARE,
    project: "alpha",
    "SHA-256 of a file": createHash("sha256").update(SECRET).digest("hex"),
    "text of a custom id": SECRET,
  };
}

/** Returns an unknown id of the same kind, in the form that the server gives to it; for other texts one of the same length. */
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
    case "delivery":
      return newDeliveryId();
    default:
      // No id has these letters.
      return id.replaceAll(/\w/g, () => "ghijklmnopqrstuv".charAt(randomInt(16)));
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
    const content = await get(kind === "files" ? "/content" : "/deliveries");
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
