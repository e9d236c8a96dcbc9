/**
 * The context of checks: servers with different configurations in front of one scriptable model server, webhook
 * endpoints, the Python client, and stories. A story is a batch that several checks look at.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { dataRoot } from "../test/support/data-root.ts";
import { type Receiver, startReceiver } from "../test/support/receiver.ts";
import { startUpstream, type TestUpstream } from "../test/support/upstream.ts";
import { ALIAS, HASTY, NARROW } from "./lines.ts";
import type { Python } from "./python.ts";
import { Server } from "./server.ts";
import { Stories } from "./stories.ts";

export const KEYS = { red: "sk-conformance-red-0001", blue: "sk-conformance-blue-0002" };
export const WEBHOOK_SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
/** A secret without its prefix is the key itself. */
export const PLAIN_SECRET = "a secret in plain words";

const STRICT_LIMITS = {
  max_file_bytes: 4_096,
  max_requests_per_batch: 3,
  max_embedding_inputs_per_batch: 4,
};

export class Context implements AsyncDisposable {
  readonly folder: string;
  readonly upstream: TestUpstream;
  /** The endpoint that receives the events of every batch of `main`. */
  readonly receiver: Receiver;
  /** The endpoint that receives the events of the project `blue`. */
  readonly blueReceiver: Receiver;
  /** A server that asks for no key and serves every model. */
  readonly main: Server;
  /** A server with two keys, each with its own project. */
  readonly keyed: Server;
  /** A server with low limits that serves two models. */
  readonly strict: Server;
  readonly stories: Stories;
  #python: Python | null = null;

  private constructor(parts: Omit<Context, "python" | "stories" | typeof Symbol.asyncDispose>) {
    this.folder = parts.folder;
    this.upstream = parts.upstream;
    this.receiver = parts.receiver;
    this.blueReceiver = parts.blueReceiver;
    this.main = parts.main;
    this.keyed = parts.keyed;
    this.strict = parts.strict;
    this.stories = new Stories(this);
  }

  static async open(): Promise<Context> {
    const folder = await mkdtemp(join(dataRoot(), "batchd-conformance-"));
    const upstream = await startUpstream({ modelNames: ["test-model", "org/model:tag"] });
    const receiver = await startReceiver();
    const blueReceiver = await startReceiver();
    const [main, keyed, strict] = await Promise.all([
      startMain(folder, upstream, receiver),
      startKeyed(folder, upstream, blueReceiver),
      startStrict(folder, upstream),
    ]);
    return new Context({ folder, upstream, receiver, blueReceiver, main, keyed, strict });
  }

  get python(): Python {
    if (this.#python === null) throw new Error("Python is not there");
    return this.#python;
  }

  set python(python: Python) {
    this.#python = python;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([this.main, this.keyed, this.strict].map((s) => s[Symbol.asyncDispose]()));
    await Promise.all([this.upstream, this.receiver, this.blueReceiver].map((s) => s.close()));
    await rm(this.folder, { recursive: true, force: true });
  }
}

const ALLOW_LOOPBACK = { allow_private_hosts: ["127.0.0.1"] };

function startMain(folder: string, { url }: TestUpstream, receiver: Receiver): Promise<Server> {
  return Server.start({
    name: "main",
    folder,
    config: {
      upstreams: [
        {
          name: "any",
          base_url: url,
          models: ["*", { name: ALIAS, upstream_model: "test-model" }],
          // Some facts leave lines without an answer. The slots of those lines must not be missing for later facts.
          min_concurrency: 64,
        },
        { name: "narrow", base_url: url, models: [NARROW], max_concurrency: 1 },
        { name: "hasty", base_url: url, models: [HASTY], timeout_seconds: 0.2 },
      ],
      engine: { stop_grace_seconds: 0.2, drain_grace_seconds: 1 },
      webhooks: {
        endpoints: [{ name: "all", url: receiver.url, secret: WEBHOOK_SECRET }],
        ...ALLOW_LOOPBACK,
      },
    },
  });
}

function startKeyed(folder: string, { url }: TestUpstream, receiver: Receiver): Promise<Server> {
  return Server.start({
    name: "keyed",
    folder,
    key: KEYS.red,
    config: {
      upstreams: [{ name: "any", base_url: url, models: ["*"] }],
      auth: {
        keys: [
          { name: "red", key: KEYS.red, project: "red" },
          { name: "blue", key: KEYS.blue, project: "blue" },
        ],
      },
      webhooks: {
        endpoints: [{ name: "blue", url: receiver.url, secret: PLAIN_SECRET, project: "blue" }],
        ...ALLOW_LOOPBACK,
      },
    },
  });
}

const startStrict = (folder: string, { url }: TestUpstream): Promise<Server> =>
  Server.start({
    name: "strict",
    folder,
    config: {
      upstreams: [{ name: "two", base_url: url, models: ["test-model", "other-model"] }],
      limits: STRICT_LIMITS,
    },
  });
