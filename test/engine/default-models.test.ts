import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type OpenAI from "openai";
import { describe, expect, test } from "vitest";
import { submitLines } from "../support/batches.ts";
import { chatLine, startTestService, type TestService } from "../support/service.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

/** Lines that leave their model open, in each way there is. */
const OPEN_LINES = [
  chatLine("missing", "Hello", { model: undefined }),
  chatLine("null", "Hello", { model: null }),
  chatLine("empty", "Hello", { model: "" }),
];

type Extended = OpenAI.Batch & { readonly x_batchd: Readonly<Record<string, unknown>> };

/** Creates a batch as a client with the SDK alone does: what it does not know goes into the body all the same. */
async function submit(
  service: TestService,
  lines: readonly string[],
  x_batchd?: object,
): Promise<Extended> {
  const own = x_batchd === undefined ? {} : { x_batchd };
  return (await submitLines(service.openai, lines, own)) as Extended;
}

async function run(service: TestService, lines: readonly string[], x_batchd?: object) {
  const { id } = await submit(service, lines, x_batchd);
  return (await service.ended(id)) as Extended;
}

const modelsSent = ({ seen }: TestUpstream) =>
  seen.map(({ body }) => (JSON.parse(body) as { model: string }).model);

const startWith = (upstream: TestUpstream, config: Record<string, unknown> = {}) =>
  startTestService({ upstreamUrl: upstream.url, config });

describe("a line that leaves its model open asks for", () => {
  test("the default model of its batch", async () => {
    await using upstream = await startUpstream();
    await using service = await startWith(upstream, { default_model: "configured" });

    const batch = await run(service, [...OPEN_LINES, chatLine("named", "Hi", { model: "mine" })], {
      default_model: "mine",
    });

    expect(batch.request_counts).toEqual({ total: 4, completed: 4, failed: 0 });
    expect(batch.model).toBe("mine");
    expect(batch.x_batchd["default_model"]).toBe("mine");
    expect(modelsSent(upstream)).toEqual(["mine", "mine", "mine", "mine"]);
    const rows = await service.rows(batch.output_file_id);
    expect(rows.map((row) => row.response?.body["model"])).toEqual([
      "mine",
      "mine",
      "mine",
      "mine",
    ]);
  });

  test("the model of the configuration, when its batch has none", async () => {
    await using upstream = await startUpstream();
    await using service = await startWith(upstream, { default_model: "configured" });

    const created = await submit(service, OPEN_LINES);
    const batch = (await service.ended(created.id)) as Extended;

    expect(batch.request_counts).toEqual({ total: 3, completed: 3, failed: 0 });
    expect([created.model, batch.model]).toEqual([null, "configured"]);
    expect(batch.x_batchd["default_model"]).toBe("configured");
    expect(modelsSent(upstream)).toEqual(["configured", "configured", "configured"]);
  });

  test("the upstream's name of it, when it is an alias", async () => {
    await using upstream = await startUpstream();
    await using service = await startTestService({
      config: {
        default_model: "chat",
        upstreams: [
          {
            name: "one",
            base_url: upstream.url,
            models: [{ name: "chat", upstream_model: "llama-3-8b" }],
          },
        ],
      },
    });

    const batch = await run(service, OPEN_LINES);

    expect(batch.model).toBe("chat");
    expect(new Set(modelsSent(upstream))).toEqual(new Set(["llama-3-8b"]));
  });

  test("the same one after a restart with another configuration", async () => {
    const dataDir = await mkdtemp(join(tmpdir(), "batchd-default-"));
    await using upstream = await startUpstream();
    const options = (default_model: string) => ({
      upstreamUrl: upstream.url,
      dataDir,
      config: { default_model, engine: { drain_grace_seconds: 0 } },
    });
    upstream.hold();
    const before = await startTestService(options("first"));
    const { id } = await submit(before, OPEN_LINES);
    await upstream.reached(3);
    await before.close();
    upstream.release();

    {
      await using after = await startTestService(options("second"));
      const batch = (await after.ended(id)) as Extended;
      expect(batch.request_counts).toEqual({ total: 3, completed: 3, failed: 0 });
      expect(batch.x_batchd["default_model"]).toBe("first");
    }
    expect(modelsSent(upstream)).toEqual(["first", "first", "first", "first", "first", "first"]);
    await rm(dataDir, { recursive: true, force: true });
  });
});

test("what a line says of its model beside others is what it gets, where several are allowed", async () => {
  await using upstream = await startUpstream();
  await using service = await startWith(upstream, { limits: { allow_mixed_models: true } });

  const batch = await run(service, [chatLine("a", "Hi", { model: "other" }), ...OPEN_LINES], {
    default_model: "mine",
  });

  expect([batch.status, batch.model]).toEqual(["completed", "other"]);
  expect(modelsSent(upstream).toSorted()).toEqual(["mine", "mine", "mine", "other"]);
});

describe("validation", () => {
  test("wants one model of a batch, and counts the default one", async () => {
    await using upstream = await startUpstream();
    await using service = await startWith(upstream, { default_model: "configured" });

    const batch = await run(service, [chatLine("a", "Hi", { model: "other" }), ...OPEN_LINES]);

    expect(batch.errors?.data?.map(({ code, line }) => [code, line])).toEqual([
      ["mismatched_model", 2],
      ["mismatched_model", 3],
      ["mismatched_model", 4],
    ]);
    expect(upstream.total).toBe(0);
  });

  test("refuses a line without a model when there is no default", async () => {
    await using upstream = await startUpstream();
    await using service = await startWith(upstream);

    const batch = await run(service, OPEN_LINES);

    expect(batch.errors?.data?.map(({ message, line }) => [message, line])).toEqual([
      ["Model parameter is required.", 1],
      ["Model parameter is required.", 2],
      ["Model parameter is required.", 3],
    ]);
  });

  test("says of a model that is no text what it is, where there is a default, too", async () => {
    await using upstream = await startUpstream();
    await using service = await startWith(upstream, { default_model: "configured" });

    const lines = [chatLine("a", "Hi", { model: 4 }), chatLine("b", "Hi", { model: ["m"] })];
    const batch = await run(service, lines);

    expect(batch.errors?.data).toEqual([
      {
        code: "invalid_type",
        message: "Invalid type for 'body.model': expected a string, but got an integer instead.",
        param: "body.model",
        line: 1,
      },
      {
        code: "invalid_type",
        message: "Invalid type for 'body.model': expected a string, but got an array instead.",
        param: "body.model",
        line: 2,
      },
    ]);
  });

  test("refuses a batch whose own default model no upstream serves, once and whether it is needed or not", async () => {
    await using upstream = await startUpstream();
    await using service = await startTestService({
      config: { upstreams: [{ name: "one", base_url: upstream.url, models: ["test-model"] }] },
    });

    for (const lines of [OPEN_LINES, [chatLine("a", "Hi")]]) {
      const batch = await run(service, lines, { default_model: "unknown" });
      expect(batch.errors?.data).toEqual([
        {
          code: "model_not_found",
          message: "The provided model 'unknown' is not supported by the Batch API.",
          param: "x_batchd.default_model",
          line: null,
        },
      ]);
    }
  });

  test("minds a configured default model that no upstream serves only where a line needs it", async () => {
    await using upstream = await startUpstream();
    await using service = await startTestService({
      config: {
        default_model: "unknown",
        upstreams: [{ name: "one", base_url: upstream.url, models: ["test-model"] }],
      },
    });

    expect((await run(service, [chatLine("a", "Hi")])).status).toBe("completed");
    const batch = await run(service, [chatLine("a", "Hi"), ...OPEN_LINES.slice(0, 1)]);
    expect(batch.errors?.data?.map(({ code, line }) => [code, line])).toEqual([
      ["model_not_found", 2],
    ]);
  });
});
