/** `check_models`: a model that its upstream does not list is refused before any line goes out. */
import type { ServerResponse } from "node:http";
import { describe, expect, test } from "vitest";
import { systemClock } from "../../../src/clock.ts";
import { submitLines } from "../../support/batches.ts";
import { chatLine, startTestService, type TestService } from "../../support/service.ts";
import { startUpstream, type TestUpstream } from "../../support/upstream.ts";

const line = (model: string, id = "line-1") => chatLine(id, "Hello", { model });

const entry = ({ url }: TestUpstream, more: object = {}) => ({
  name: "gpu",
  base_url: url,
  models: ["*"],
  check_models: true,
  ...more,
});

const serve = (...upstreams: readonly object[]) =>
  startTestService({ config: { limits: { allow_mixed_models: true }, upstreams } });

/** How a batch of one line for each model ends. */
async function run(service: TestService, ...models: readonly string[]) {
  const lines = models.map((model, i) => line(model, `line-${i + 1}`));
  const { status, errors } = await service.run(lines);
  return { status, errors: errors?.data ?? [] };
}

test("without check_models a name that the upstream does not list goes out all the same", async () => {
  await using upstream = await startUpstream({ modelNames: ["small"] });
  await using service = await serve(entry(upstream, { check_models: false }));
  expect(await run(service, "unheard-of")).toMatchObject({ status: "completed" });
  expect([upstream.total, upstream.modelListCount]).toEqual([1, 0]);
});

test("with it such a name is model_not_found, with what the upstream lists, and nothing goes out", async () => {
  await using upstream = await startUpstream({ modelNames: ["small", "large"] });
  await using service = await serve(entry(upstream));
  expect(await run(service, "small")).toMatchObject({ status: "completed" });
  expect(await run(service, "small", "unheard-of")).toEqual({
    status: "failed",
    errors: [
      {
        code: "model_not_found",
        line: 2,
        message:
          "The provided model 'unheard-of' is not supported by the Batch API. The upstream gpu lists 'small', 'large'.",
        param: "body.model",
      },
    ],
  });
  expect(upstream.total).toBe(1);
});

test("what the upstream lists is told to a project as far as the project may use it", async () => {
  const rules = { name: "default", models: ["team-a-*"] };
  const message = "The provided model 'team-a-old' is not supported by the Batch API.";
  for (const [modelNames, hint] of [
    [["team-a-new", "team-b-secret"], " The upstream gpu lists 'team-a-new'."],
    [["team-b-secret"], ""],
  ] as const) {
    await using upstream = await startUpstream({ modelNames: [...modelNames] });
    const config = { upstreams: [entry(upstream)], projects: [rules] };
    await using service = await startTestService({ config });
    const { errors } = await run(service, "team-a-old");
    expect(errors).toMatchObject([{ code: "model_not_found", message: message + hint }]);
    expect(upstream.total).toBe(0);
  }
});

test("the default model of a batch is held to the list as well", async () => {
  await using upstream = await startUpstream({ modelNames: ["small"] });
  await using service = await serve(entry(upstream));
  const own = { x_batchd: { default_model: "unheard-of" } };
  const batch = await submitLines(service.openai, [line("")], own);
  expect((await service.ended(batch.id)).errors?.data).toMatchObject([
    { code: "model_not_found", param: "x_batchd.default_model" },
  ]);
});

describe("a name counts as listed", () => {
  test.each([
    ["llama3.2", "llama3.2:latest"],
    ["llama3.2:latest", "llama3.2"],
    ["gemini-flash", "models/gemini-flash"],
  ])("%s where the server says %s", async (asked, listed) => {
    await using upstream = await startUpstream({ modelNames: [listed] });
    await using service = await serve(entry(upstream));
    expect(await run(service, asked)).toMatchObject({ status: "completed" });
  });

  test("under another tag it does not", async () => {
    await using upstream = await startUpstream({ modelNames: ["llama3.2:latest"] });
    await using service = await serve(entry(upstream));
    expect(await run(service, "llama3.2:1b")).toMatchObject({ status: "failed" });
  });

  test("when the name that the upstream knows it by is listed", async () => {
    await using upstream = await startUpstream({ modelNames: ["meta/llama"] });
    const models = [
      { name: "chat", upstream_model: "meta/llama" },
      { name: "gone", upstream_model: "meta/old" },
    ];
    await using service = await serve(entry(upstream, { models }));
    expect(await run(service, "chat")).toMatchObject({ status: "completed" });
    expect(await run(service, "gone")).toMatchObject({ status: "failed" });
  });

  test("when it is an alias of a model", async () => {
    await using upstream = await startUpstream();
    upstream.sayModels = answer('{"data":[{"id":"large-2411","aliases":["large-latest"]}]}');
    await using service = await serve(entry(upstream));
    expect(await run(service, "large-latest")).toMatchObject({ status: "completed" });
  });

  test("when one upstream of several has it, or may have it", async () => {
    await using one = await startUpstream({ modelNames: ["small"] });
    await using two = await startUpstream({ modelNames: ["large"] });
    await using service = await serve(entry(one), entry(two, { name: "two" }));
    expect(await run(service, "large")).toMatchObject({ status: "completed" });
    expect(await run(service, "unheard-of")).toMatchObject({ status: "failed" });
    await using lenient = await serve(entry(one), entry(two, { name: "two", check_models: false }));
    // What `one` refuses is a failed line, as without any check.
    expect(await run(lenient, "unheard-of")).toMatchObject({ status: "completed" });
  });
});

const answer =
  (body: string, status = 200) =>
  (response: ServerResponse) => {
    response.writeHead(status, { "content-type": "application/json" }).end(body);
  };

describe("without a list every line passes:", () => {
  test.each<[string, (response: ServerResponse) => void]>([
    ["an empty list", answer('{"data":[]}')],
    ["no list at all", answer('{"models":{}}')],
    ["a list of something else", answer('{"data":[null,1,{"id":2}]}')],
    ["a page", answer("<html></html>")],
    ["a 404", answer("{}", 404)],
    ["a 500", answer("down", 500)],
    ["a 429", answer("{}", 429)],
    ["a broken connection", (response) => response.destroy()],
    ["no answer", () => {}],
    ["an answer that never ends", (response) => response.writeHead(200).write("[")],
    ["an answer of many megabytes", answer(`{"data":[{"id":"${"x".repeat(4_000_000)}"}]}`)],
  ])("%s", async (_, say) => {
    await using upstream = await startUpstream();
    upstream.sayModels = say;
    await using service = await serve(entry(upstream));
    expect(await run(service, "unheard-of")).toMatchObject({ status: "completed" });
    expect(upstream.modelListCount).toBe(1);
  });

  test("an upstream that is down", async () => {
    const upstream = await startUpstream();
    await using service = await serve(entry(upstream));
    await upstream.close();
    const batch = await service.submit([line("unheard-of")]);
    await service.events.reached("batch.started", { batch: batch.id });
  });
});

test("a batch of hundreds of models asks once, and so do the batches of the next seconds", async () => {
  const names = Array.from({ length: 300 }, (_, i) => `model-${i}`);
  await using upstream = await startUpstream({ modelNames: names });
  // A list is good for five seconds, which a busy machine may need for the first batch alone.
  const clock = { ...systemClock, elapsedMs: () => 0 };
  const config = { limits: { allow_mixed_models: true }, upstreams: [entry(upstream)] };
  await using service = await startTestService({ clock, config });
  expect(await run(service, ...names)).toMatchObject({ status: "completed" });
  expect(await run(service, "model-7")).toMatchObject({ status: "completed" });
  expect(upstream.modelListCount).toBe(1);
});

test("a model that appears on the list, or goes from it, is noticed within seconds", async () => {
  await using upstream = await startUpstream({ modelNames: ["small"] });
  let aheadMs = 0;
  const clock = { ...systemClock, elapsedMs: () => systemClock.elapsedMs() + aheadMs };
  await using service = await startTestService({ clock, config: { upstreams: [entry(upstream)] } });
  expect(await run(service, "large")).toMatchObject({ status: "failed" });
  upstream.modelNames = ["large"];
  aheadMs += 5_000;
  expect(await run(service, "large")).toMatchObject({ status: "completed" });
  expect(await run(service, "small")).toMatchObject({ status: "failed" });
});

test("the message stays short however much an upstream lists", async () => {
  const names = Array.from({ length: 500 }, (_, i) => `${"long-".repeat(100)}${i}`);
  await using upstream = await startUpstream({ modelNames: names });
  await using service = await serve(entry(upstream));
  const { errors } = await run(service, "unheard-of");
  expect(errors[0]?.message).toContain("and 490 more.");
  expect(errors[0]?.message?.length).toBeLessThan(1_000);
});
