/** Servers whose requests belong to the projects `search` and `other`, and the requests of their clients. */
import { join } from "node:path";
import OpenAI from "openai";
import { dataRoot } from "./data-root.ts";
import type { TestPostgres } from "./postgres.ts";
import { chatLine, startTestService, type TestService } from "./service.ts";
import { temporaryFolder } from "./store-builders.ts";
import { putTables } from "./tables.ts";
import { startUpstream, type TestUpstream } from "./upstream.ts";

export const PARALLEL = 100;
export const LINE = `${chatLine("a", "Hello")}\n`;

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly body: AnswerBody;
}

interface AnswerBody {
  readonly id?: string;
  readonly status?: string;
  readonly data?: readonly { readonly id: string }[];
  readonly error?: { readonly code: string; readonly type: string; readonly message: string };
}

const keys = [
  { name: "a", key: "key-a", project: "search" },
  { name: "b", key: "key-b", project: "other" },
  { name: "operator", key: "key-admin", scopes: ["admin"] },
];

/** A configuration with rules for the project `search`. */
export const configWith = (project: object, more: object = {}) => ({
  auth: { keys },
  projects: [{ name: "search", ...project }],
  ...more,
});

export async function ask(
  url: string,
  path: string,
  init: RequestInit = {},
  key = "key-a",
): Promise<Answer> {
  const headers = { authorization: `Bearer ${key}` };
  const response = await fetch(`${url}/v1/${path}`, { headers, ...init });
  const { status, headers: answered } = response;
  return { status, headers: answered, body: (await response.json()) as AnswerBody };
}

export const post = (url: string, path: string, body: object, key?: string): Promise<Answer> =>
  ask(url, path, { method: "POST", body: JSON.stringify(body) }, key);

export function upload(url: string, content = LINE, key?: string): Promise<Answer> {
  const body = new FormData();
  body.set("purpose", "batch");
  body.set("file", new Blob([content]), "a.jsonl");
  return ask(url, "files", { method: "POST", body }, key);
}

export const create = (
  url: string,
  fileId: string,
  { key, ...more }: { readonly key?: string; readonly x_batchd?: object } = {},
): Promise<Answer> =>
  post(
    url,
    "batches",
    {
      input_file_id: fileId,
      endpoint: "/v1/chat/completions",
      completion_window: "24h",
      ...more,
    },
    key,
  );

export const count = (answers: readonly Answer[], status: number) =>
  answers.filter((answer) => answer.status === status).length;

/** Sends so many requests at once, to the servers in turn. */
export const together = (
  urls: readonly string[],
  send: (url: string) => Promise<Answer>,
  requestCount = PARALLEL,
) =>
  Promise.all(
    Array.from({ length: requestCount }, (_, n) => send(urls[n % urls.length] as string)),
  );

export const clientOf = (url: string, key = "key-a"): OpenAI =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });

export interface ProjectServers extends AsyncDisposable {
  readonly services: readonly TestService[];
  readonly urls: readonly string[];
  readonly upstream: TestUpstream;
  /** The parts of the configuration that say where the servers keep their data, and whom they ask. */
  readonly places: Record<string, unknown>;
}

/** Starts one server with SQLite; with `postgres`, two servers that share a database. All have one model server. */
export async function startProjectServers(
  postgres: TestPostgres | null,
  config: Record<string, unknown>,
): Promise<ProjectServers> {
  const upstream = await startUpstream();
  const upstreams = [{ name: "only", base_url: upstream.url, models: ["*"] }];
  const folder = temporaryFolder("batchd-projects-", dataRoot());
  const databaseUrl = await postgres?.createDatabase();
  if (postgres === null) putTables(join(folder.path, "batchd.sqlite"));
  const places = {
    upstreams,
    data_dir: folder.path,
    ...(databaseUrl !== undefined && { database_url: databaseUrl }),
  };
  const start = () => startTestService({ dataDir: folder.path, config: { ...places, ...config } });
  const services = [await start()];
  if (postgres !== null) services.push(await start());
  return {
    services,
    upstream,
    places,
    urls: services.map(({ url }) => url),
    async [Symbol.asyncDispose]() {
      upstream.release();
      for (const service of services) await service[Symbol.asyncDispose]();
      await upstream[Symbol.asyncDispose]();
      folder[Symbol.dispose]();
    },
  };
}
