/** Batches whose input is made of lines and answers of another batch, which may still run. */
import { expect, test } from "vitest";
import { chatTemplate, derive, look } from "../../support/derived.ts";
import { FakeClock } from "../../support/fake-clock.ts";
import { chatLine, chatLines, startTestService } from "../../support/service.ts";
import { startUpstream } from "../../support/upstream.ts";

const ANSWER = "{{output.choices.0.message.content}}";

test("a chain of batches waits for each source, and every line keeps its id and its place", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  upstream.hold();
  const lines = chatLines(600, (n) => `Say "${n}" – é\n`);
  const first = await service.submit([...lines.slice(0, 300), "", ...lines.slice(300)]);
  const second = await derive(service, { batch: first.id, template: chatTemplate(`2: ${ANSWER}`) });
  const template = chatTemplate("", {
    messages: [{ role: "user", content: "{{input.messages.0.content}} / {{output.usage}}" }],
    n: "{{output.usage.prompt_tokens}}",
    whole: "{{output.choices}}",
  });
  const third = await derive(service, { batch: second.batch.id, lines: "all", template });
  const { embedding } = await derive(
    service,
    { batch: third.batch.id, template: { model: "e", input: ANSWER } },
    { endpoint: "/v1/embeddings" },
  ).then(({ batch }) => ({ embedding: batch }));
  for (const { batch } of [second, third]) {
    expect([batch.status, batch.x_batchd.waiting?.reason]).toEqual(["validating", "source"]);
  }
  expect(second.batch.x_batchd.from).toEqual({
    batch: first.id,
    lines: "succeeded",
    merge: false,
    template: chatTemplate(`2: ${ANSWER}`),
  });
  expect(second.batch.input_file_id).toMatch(/^file-/);
  await expect(service.openai.files.retrieve(second.batch.input_file_id)).rejects.toThrow(
    "No such",
  );
  // Also while they wait, and their sources run.
  expect((await look(service, first.id)).x_batchd.retried_by).toEqual([second.batch.id]);
  upstream.release();

  const ended = await service.ended(embedding.id);
  expect(ended.request_counts).toEqual({ total: 600, completed: 600, failed: 0 });
  const ids = lines.map((_, i) => `line-${i + 1}`);
  expect((await service.rows(ended.output_file_id)).map((row) => row.custom_id)).toEqual(ids);
  const made = await look(service, third.batch.id);
  expect([made.input_file_id, made.x_batchd.waiting]).toEqual([third.batch.input_file_id, null]);
  const input = (await service.text(made.input_file_id)).split("\n").slice(0, -1);
  const question = `2: echo: Say "7" – é\n`;
  const line = JSON.parse(input[6] ?? "");
  expect(line).toMatchObject({ custom_id: "line-7", method: "POST", url: "/v1/chat/completions" });
  expect(line.body).toMatchObject({ user: "line-7", n: 7 });
  expect(line.body.messages[0].content).toContain(`${question} / {"prompt_tokens":7,`);
  expect(line.body.whole[0].message.content).toBe(`echo: ${question}`);
  const file = await service.openai.files.retrieve(made.input_file_id);
  expect(file).toMatchObject({ purpose: "batch", filename: `${second.batch.id}_all.jsonl` });
});

test("a waiting batch holds up no other, can be cancelled and deleted, and its window goes on", async () => {
  await using upstream = await startUpstream();
  const clock = new FakeClock();
  await using service = await startTestService({ upstreamUrl: upstream.url, clock });
  upstream.hold();
  const { id } = await service.submit(chatLines(3));
  await upstream.reached(3);
  const waiting = await Promise.all(
    Array.from({ length: 4 }, () => derive(service, { batch: id })),
  );
  const [cancelled, deleted, expired, chained] = waiting.map(({ batch }) => batch.id);
  const other = await service.submit(chatLines(3));
  await upstream.reached(6);
  expect((await look(service, other.id)).status).toBe("in_progress");
  await service.openai.batches.cancel(cancelled ?? "");
  expect((await service.ended(cancelled ?? "")).status).toBe("cancelled");
  await service.openai.delete(`/batches/${deleted}?files=input`);
  const last = await derive(service, { batch: chained, lines: "all" });
  clock.advance(25 * 60 * 60 * 1_000);
  await service.ended(expired ?? "");
  expect((await look(service, expired ?? "")).status).toBe("expired");
  const late = await derive(service, { batch: expired, lines: "all" });
  expect(late.status).toBe(409);
  expect(late.batch.error?.message).toBe(
    `The batch '${expired}' ended before its input was made. Name '${id}', which it was to be made of, in its place.`,
  );
  upstream.release();
  for (const { batch } of [waiting[3], last].filter((each) => each !== undefined)) {
    expect((await service.ended(batch.id)).status).toBe("expired");
  }
  expect(
    (await service.openai.files.list()).data.filter((f) => f.purpose === "batch"),
  ).toHaveLength(2);
});

test("a source that is deleted, has failed or has no such lines fails the batch that waits for it", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  upstream.hold();
  const { id: deleted } = await service.submit(chatLines(1));
  const { id: good } = await service.submit(chatLines(1));
  await upstream.reached(2);
  const ofDeleted = await derive(service, { batch: deleted });
  const ofGood = await derive(service, { batch: good, lines: "failed" });
  const ofFailed = await derive(service, { batch: ofGood.batch.id, lines: "all" });
  const withInput = await derive(service, { batch: good, lines: "all" });
  await service.openai.delete(`/batches/${deleted}`);
  const { input_file_id: input } = await look(service, good);
  upstream.release();
  await service.ended(good);
  const faultOf = async ({ batch }: typeof ofGood) => {
    const { status, errors } = await service.ended(batch.id);
    return [status, errors?.data?.[0]?.code, errors?.data?.[0]?.message];
  };
  expect(await faultOf(ofDeleted)).toEqual([
    "failed",
    "source_unusable",
    `The batch '${deleted}' was deleted.`,
  ]);
  expect(await faultOf(ofGood)).toEqual([
    "failed",
    "source_unusable",
    `The batch '${good}' with status 'completed' has no lines that failed.`,
  ]);
  expect(await faultOf(ofFailed)).toEqual([
    "failed",
    "source_unusable",
    "Cannot run lines of a batch with status 'failed' again.",
  ]);
  expect((await service.ended(withInput.batch.id)).status).toBe("completed");
  await service.openai.files.delete(input);
  const late = await derive(service, { batch: good, lines: "all" });
  expect([late.status, late.batch.error?.message]).toEqual([
    409,
    `The input file of the batch '${good}' was deleted. Upload its lines again.`,
  ]);
});

test("what a line lacks, or is too long, is listed with the line, and the batch fails", async () => {
  await using upstream = await startUpstream();
  const limits = { max_line_bytes: 40_000 };
  const upstreams = [{ name: "one", base_url: upstream.url, models: ["*"] }];
  await using service = await startTestService({ config: { upstreams, limits } });
  const { id } = await service.run([
    chatLine("a", "one", { extra: { deep: [1] } }),
    chatLine("b", "two [[status 400]]", { extra: { deep: [] } }),
    chatLine("c", "three [[big 20000]]", { extra: { deep: [null] } }),
  ]);
  const faults = async (lines: string, template: object) => {
    const { batch } = await derive(service, { batch: id, lines, template });
    const ended = await service.ended(batch.id);
    await expect(service.openai.files.retrieve(batch.input_file_id)).rejects.toThrow("No such");
    return ended.errors?.data?.map(({ line, code, message }) => [line, code, message]);
  };
  expect(await faults("all", chatTemplate("x {{input.extra.deep.0}}"))).toEqual([
    [2, "template_value_missing", "The line of 'b' has no 'input.extra.deep.0'."],
    [
      3,
      "template_value_missing",
      "The line of 'c' has null at 'input.extra.deep.0', which is no text.",
    ],
  ]);
  expect(await faults("all", chatTemplate(ANSWER))).toEqual([
    [
      2,
      "template_value_missing",
      "The line of 'b' has no answer, so there is no 'output.choices.0.message.content'.",
    ],
    [3, "template_value_missing", "The line of 'c' has no 'output.choices.0.message.content'."],
  ]);
  // A template that repeats an answer a thousand times costs no memory.
  const bomb = chatTemplate("{{output}}".repeat(2_000));
  expect(await faults("succeeded", bomb)).toEqual([
    [1, "line_too_long", "The line of 'a' would have more than 40000 bytes."],
    [2, "line_too_long", "The line of 'c' would have more than 40000 bytes."],
  ]);
  const hostile = chatTemplate("{{input.__proto__}}{{input.extra.deep.999999999999}}");
  expect(await faults("failed", hostile)).toEqual([
    [1, "template_value_missing", "The line of 'b' has no 'input.__proto__'."],
  ]);
});

test("a template keeps every key, and the names of prototypes are keys like others", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const { id } = await service.run([chatLine("a", "one")]);
  const hostile = '"__proto__":{"a":"{{input.model}}"},"constructor":1,"x":{"__proto__":2}';
  const template = JSON.parse(
    `{${hostile},"model":"m","messages":[{"role":"user","content":"q"}]}`,
  ) as object;
  const { batch } = await derive(service, { batch: id, template });
  const ended = await service.ended(batch.id);
  const [line = ""] = (await service.text(ended.input_file_id)).split("\n");
  expect(line).toContain(`"body":{${hostile.replace("{{input.model}}", "test-model")},"model":"m"`);
  expect(JSON.stringify((await look(service, ended.id)).x_batchd)).toContain(hostile);
});

test("a request that cannot be meant is refused at once", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const { id } = await service.run([chatLine("a", "one")]);
  for (const [from, param, message] of [
    [{ template: { a: "{{foo}}" } }, "template", "unknown placeholder '{{foo}}'"],
    [{ template: { a: "{{input" } }, "template", "'{{' without '}}'"],
    [{ template: { a: "x".repeat(40_000) } }, "template", "longer than 32768 bytes"],
    [{ template: "a" }, "template", "Invalid type"],
    [{ template: {}, merge: true }, "merge", "not those of the lines"],
    [{ template: { a: "{{output}}" }, lines: "failed" }, "lines", "have no output"],
  ] as const) {
    const { status, batch } = await derive(service, { batch: id, ...from });
    expect([status, batch.error]).toMatchObject([
      400,
      { param: `x_batchd.from.${param}`, message: expect.stringContaining(message) },
    ]);
  }

  // JSON.stringify would run out of stack, also for the digest of a repeated request.
  const deep = `${"[".repeat(20_000)}${"]".repeat(20_000)}`;
  const ask = async (value: string) => {
    const x_batchd = { from: { batch: id, template: { model: "m", a: "VALUE" } } };
    const fields = { endpoint: "/v1/chat/completions", completion_window: "24h", x_batchd };
    const body = JSON.stringify(fields).replace('"VALUE"', value);
    const headers = { "idempotency-key": "deep" };
    return (await fetch(`${service.url}/v1/batches`, { method: "POST", headers, body })).status;
  };
  expect([await ask(deep), await ask("1"), await ask(deep)]).toEqual([400, 200, 400]);
});
