/** `batchd pipeline run`, and every command of docs/pipelines.md. */
import { spawn } from "node:child_process";
import { cpSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { COMPILE_CACHE, MAIN } from "../support/process.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const PAGE = readFileSync(new URL("../../docs/pipelines.md", import.meta.url), "utf8");
const EXAMPLES = fileURLToPath(new URL("../../examples/pipelines", import.meta.url));
const ROWS = 12;
const DIFFERENT = 11;

const folder = forAllTests(temporaryFolder("batchd-pipeline-")).path;
cpSync(EXAMPLES, join(folder, "examples/pipelines"), { recursive: true });
const upstream = forAllTests(await startUpstream());
const service = forAllTests(await startTestService({ upstreamUrl: upstream.url }));

interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

function start(args: readonly string[]) {
  const env = { ...process.env, BATCHD_URL: service.url, NODE_COMPILE_CACHE: COMPILE_CACHE };
  const child = spawn(process.execPath, [MAIN, ...args], { cwd: folder, env });
  const said = { stdout: "", stderr: "" };
  for (const name of ["stdout", "stderr"] as const) {
    child[name].setEncoding("utf8").on("data", (text: string) => {
      said[name] += text;
    });
  }
  const ended = new Promise<Ended>((resolve) =>
    child.on("close", (code) => resolve({ code, ...said })),
  );
  return { child, ended, said };
}

const batchd = (...args: readonly string[]) => start(args).ended;
const batches = async () => (await service.openai.batches.list({ limit: 100 })).data;
const read = (name: string) => readFileSync(join(folder, name), "utf8");

test("the commands of the page run three steps, find them again, and do the last one anew", async () => {
  const commands = [...PAGE.matchAll(/```bash\n([\s\S]*?)```/g)].flatMap(([, block = ""]) =>
    block.trim().split("\n"),
  );
  expect(commands).toHaveLength(3);
  const results: Ended[] = [];
  for (const command of commands) {
    results.push(await batchd(...command.split(" ").slice(1)));
    expect(results.at(-1)).toMatchObject({ code: 0 });
  }
  // Two rows of the data ask the same.
  expect(upstream.total).toBe(DIFFERENT + 3 * ROWS);
  expect(await batches()).toHaveLength(4);
  const [first, second] = results;
  expect(first?.stderr).toContain("step 3 of 3, rewrite");
  const json = (second?.stdout ?? "").trim().split("\n");
  expect(json.map((line) => JSON.parse(line).metadata.step)).toEqual([
    "1 translate",
    "2 judge",
    "3 rewrite",
  ]);
  // The page, run records and branches of deliveries call a batch by this name.
  expect(json.map((line) => JSON.parse(line).metadata.name)).toEqual([
    "translate-1-translate",
    "translate-2-judge",
    "translate-3-rewrite",
  ]);
  const ids = (text: string) => [...text.matchAll(/"custom_id":"([^"]+)"/g)].map(([, id]) => id);
  const rows = ids(read("rewritten.jsonl"));
  expect(rows).toEqual(
    read("examples/pipelines/phrases.jsonl")
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line).id),
  );
  expect(ids(read("again.jsonl"))).toEqual(rows);

  const table = await batchd(...(commands[0] ?? "").split(" ").slice(1, -1), "rewritten.csv");
  expect(table).toMatchObject({ code: 0, stderr: expect.stringContaining("in rewritten.csv") });
  expect(read("rewritten.csv").split("\r\n")[0]).toMatch(/^"custom_id","line",/);
});

test("a run that is killed goes on without a second batch, and a changed step runs anew", async () => {
  const steps = (last: string) =>
    `name: kill\nsteps:\n  - name: ask\n  - name: check\n    template: {model: m, messages: [{role: user, content: "${last} {{output.choices.0.message.content}}"}]}\n`;
  writeFileSync(join(folder, "steps.yaml"), steps("one"));
  const line = (id: string) =>
    `{"custom_id":"${id}","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"${id}"}]}}\n`;
  writeFileSync(join(folder, "lines.jsonl"), line("a") + line("b"));
  const before = (await batches()).length;
  const sent = upstream.total;
  upstream.hold();
  const { child, ended } = start(["pipeline", "run", "steps.yaml", "lines.jsonl"]);
  await upstream.reached(sent + 2);
  await expect.poll(async () => (await batches()).length, { timeout: 60_000 }).toBe(before + 2);
  child.kill("SIGKILL");
  await ended;
  const interrupted = start(["pipeline", "run", "steps.yaml", "lines.jsonl"]);
  await expect.poll(() => interrupted.said.stderr).toContain("in_progress");
  interrupted.child.kill("SIGINT");
  expect(await interrupted.ended).toMatchObject({
    code: 130,
    stderr: expect.stringMatching(/Run the same command again to follow all steps\.\n$/),
  });
  upstream.release();
  const again = await batchd("pipeline", "run", "steps.yaml", "lines.jsonl");
  expect(again).toMatchObject({
    code: 0,
    stderr: expect.stringMatching(/^step 1 of 2, ask: batch_\w+ (?:goes on|has ended)\n/),
  });
  expect([(await batches()).length, upstream.total]).toEqual([before + 2, sent + 4]);
  writeFileSync(join(folder, "steps.yaml"), steps("two"));
  const changed = await batchd("pipeline", "run", "steps.yaml", "lines.jsonl");
  expect(changed).toMatchObject({ code: 0 });
  expect(changed.stderr).toMatch(
    /^step 1 of 2, ask: (batch_\w+) has ended\n.* created\n.*\n\1 completed: 2 of 2 lines\n/,
  );
  expect([(await batches()).length, upstream.total]).toEqual([before + 3, sent + 6]);
});

test("long numbers and ids of the data arrive as they are written", async () => {
  const template = { model: "test-model", messages: "{{input.messages}}", seed: "{{input.seed}}" };
  const steps = [{ name: "ask", template }];
  writeFileSync(join(folder, "numbers.yaml"), JSON.stringify({ name: "numbers", steps }));
  const content = [{ role: "user", content: "hello" }];
  const rowOf = (id: string) =>
    `{"id": ${id}, "seed": 9007199254740993.10, "messages": ${JSON.stringify(content)}}\n`;
  // Both are the same number for JavaScript.
  const [one, other] = ["9007199254740992", "9007199254740993"];
  writeFileSync(join(folder, "numbers.jsonl"), rowOf(one) + rowOf(other));
  const ran = await batchd("pipeline", "run", "numbers.yaml", "numbers.jsonl");
  expect(ran).toMatchObject({ code: 0 });
  const { input_file_id } = await service.openai.batches.retrieve(ran.stdout.trim());
  const input = await (await service.openai.files.content(input_file_id)).text();
  expect([...input.matchAll(/"custom_id":"([^"]+)"/g)].map(([, id]) => id)).toEqual([one, other]);
  expect(input.match(/"seed":9007199254740993\.10/g)).toHaveLength(2);
});

test("rows behind a byte order mark, and in standard input, become lines", async () => {
  const template = { model: "test-model", messages: [{ role: "user", content: "{{input.q}}" }] };
  const steps = [{ name: "ask", template }];
  writeFileSync(join(folder, "marked.yaml"), JSON.stringify({ name: "marked", steps }));
  const { child, ended } = start(["pipeline", "run", "marked.yaml", "-"]);
  child.stdin.end('\ufeff{"id":"a","q":"hello"}\r\n{"id":"b","q":"\u{1f600}"}\r\n');
  const { code, stdout, stderr } = await ended;
  expect({ code, stderr }).toMatchObject({ code: 0 });
  const { input_file_id } = await service.openai.batches.retrieve(stdout.trim());
  const input = await (await service.openai.files.content(input_file_id)).text();
  const lines = input.trimEnd().split("\n");
  expect(lines.map((line) => JSON.parse(line).custom_id)).toEqual(["a", "b"]);
  expect(lines.map((line) => JSON.parse(line).body.messages[0].content)).toEqual([
    "hello",
    "\u{1f600}",
  ]);
});

test("a pipeline or data of another encoding are refused, and no letter goes out as another one", async () => {
  const latin1 = (name: string, text: string) => writeFileSync(join(folder, name), text, "latin1");
  const template = {
    model: "test-model",
    messages: [{ role: "user", content: "{{input.q}} \u00e9" }],
  };
  const pipeline = JSON.stringify({ name: "latin", steps: [{ name: "ask", template }] });
  const rows = '{"q":"cafe"}\n{"q":"caf\u00e9"}\n';
  latin1("latin.yaml", pipeline);
  writeFileSync(join(folder, "utf8.yaml"), pipeline);
  latin1("latin.jsonl", rows);
  const before = (await batches()).length;
  expect(await batchd("pipeline", "run", "utf8.yaml", "latin.jsonl")).toMatchObject({
    code: 1,
    stderr: "batchd: line 2 of the data is not in UTF-8\n",
  });
  expect(await batchd("pipeline", "run", "latin.yaml", "latin.jsonl")).toMatchObject({
    code: 1,
    stderr: "batchd: latin.yaml is not a text file in UTF-8\n",
  });
  expect(await batches()).toHaveLength(before);
});

test("data that is a table, or JSON over several lines, is refused with a hint what it is", async () => {
  const template = { model: "test-model", prompt: "{{input.q}}" };
  const steps = [{ name: "ask", endpoint: "/v1/completions", template }];
  writeFileSync(join(folder, "ask.yaml"), JSON.stringify({ name: "ask", steps }));
  for (const [data, hint] of [
    ["id,q\n1,Hello\n", "Line 1 looks like CSV."],
    ['{"q":"Hello"}\n{\n  "q": "Hi"\n}\n', "Line 2 begins a JSON object that does not end there"],
  ] as const) {
    writeFileSync(join(folder, "ask.data"), data);
    const refused = await batchd("pipeline", "run", "ask.yaml", "ask.data");
    expect(refused).toMatchObject({ code: 1, stderr: expect.stringContaining(`(HINT: ${hint}`) });
  }
});

test("answers replace neither the data nor the file of the pipeline", async () => {
  const files = ["examples/pipelines/translate.yaml", "examples/pipelines/phrases.jsonl"] as const;
  const before = (await batches()).length;
  for (const file of files) {
    const content = read(file);
    expect(await batchd("pipeline", "run", ...files, "-o", file)).toMatchObject({
      code: 1,
      stderr: `batchd: ${file} is an input; name another file for the answers with -o\n`,
    });
    expect(read(file)).toBe(content);
  }
  expect(await batches()).toHaveLength(before);
});

test("faults of the file and of the data are told before anything is sent, and a failed step ends the run", async () => {
  const before = (await batches()).length;
  const run = async (steps: string, data: string) => {
    writeFileSync(join(folder, "bad.yaml"), steps);
    writeFileSync(join(folder, "bad.jsonl"), data);
    return batchd("pipeline", "run", "bad.yaml", "bad.jsonl");
  };
  const one = "name: bad\nsteps: [{name: a, template: {model: m, x: '{{input.text}}'}}";
  expect(await run("name: bad\nsteps: [{name: a}, {name: b, more: 1}]", "{}\n")).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(
      /more[\s\S]*only the first step needs none|needs none[\s\S]*more|more/,
    ),
  });
  expect(await run(`${one}, {name: b, template: {a: '{{foo}}'}}]`, "{}\n")).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("unknown placeholder '{{foo}}'"),
  });
  expect(await run("name: bad\nsteps: [{name: a", "{}\n")).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(
      /^batchd: bad\.yaml is no pipeline: [^\n\\]+ at line 2, column \d+(?:; [^\n\\]+)?\n$/,
    ),
  });
  expect(await run("name: bad\nsteps: [{nam: a, template: {}}]", "{}\n")).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("steps[0].nam: unknown key, did you mean name?"),
  });
  const bomb = [..."bcdefghij"].map(
    (name, i) => `${name}: &${name} [${Array(9).fill(`*${"abcdefghij"[i]}`)}]`,
  );
  expect(await run(["a: &a [x]", ...bomb].join("\n"), "{}\n")).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("is no pipeline: Excessive alias count"),
  });
  expect(
    await run(
      `name: bad\nsteps: [{name: a, template: {model: m, x: "${"{{input.text}}".repeat(1_000)}"}}]`,
      `{"text":"${"x".repeat(1_000_000)}"}\n`,
    ),
  ).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("line 1 of the data would become a line with more than"),
  });
  expect(await run(`${one}]`, '{"text":"a"}\n{"txt":"b"}\n')).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("line 2 of the data has no 'input.text'"),
  });
  expect(await run(`${one}]`, "")).toMatchObject({
    code: 1,
    stderr: "batchd: bad.jsonl is empty\n",
  });
  const refused = await run(
    `${one.replace("{name: a", "{name: a, window: 29d")}]`,
    '{"text":"a"}\n',
  );
  expect(refused).toMatchObject({ code: 1, stderr: expect.stringContaining("'29d'") });
  const deletion = /^To delete it: batchd (.*)$/m.exec(refused.stderr)?.[1]?.split(" ") ?? [];
  expect((await batchd(...deletion)).stdout).toMatch(/^deleted file-/);
  expect((await batches()).length).toBe(before);
  const fails = () =>
    run(
      "name: bad\nsteps: [{name: a, template: {model: m, messages: [{role: user, content: '{{input.text}}'}]}}, {name: b, template: {model: m, x: '{{output.none}}'}}]",
      '{"text":"a"}\n',
    );
  // The second run finds its batches, which have ended.
  for (const failing of [await fails(), await fails()]) {
    expect(failing).toMatchObject({ code: 4, stderr: expect.stringContaining("--from-step 2") });
    expect(failing.stderr).toContain("has no 'output.none'");
  }
});

test("a step that has ended before the next one was made ends the run with its reason and its exit code", async () => {
  writeFileSync(join(folder, "early.jsonl"), '{"text":"a"}\n');
  const run = async (first: string, ...others: readonly string[]) => {
    const steps = [
      `{name: a, template: {model: m, ${first}}}`,
      ...others.map((template) => `{name: b, template: ${template}}`),
    ];
    writeFileSync(join(folder, "early.yaml"), `name: early\nsteps: [${steps.join(", ")}]`);
    return batchd("pipeline", "run", "early.yaml", "early.jsonl");
  };
  const messages = (text: string) => `messages: [{role: user, content: '${text}'}]`;
  const next = `{model: m, ${messages("{{output.id}}")}}`;
  // The first run has one step, so it has ended when the second run adds another one.
  const faulty = `stream: true, ${messages("{{input.text}}")}`;
  expect(await run(faulty)).toMatchObject({ code: 4 });
  expect(await run(faulty, next)).toMatchObject({
    code: 4,
    stderr: expect.stringMatching(
      /\(streaming_unsupported\)\nstep 1 of 2, a has not completed\. To do it again: --from-step 1\n$/,
    ),
  });
  const refused = messages("[[status 400 x1]]{{input.text}}");
  const stepBefore = expect.stringMatching(
    /with status 'completed' has no lines that succeeded\.[^\n]*\nTo do the step before it again: --from-step 1\n$/,
  );
  expect(await run(refused)).toMatchObject({ code: 3 });
  expect(await run(refused, next)).toMatchObject({ code: 4, stderr: stepBefore });
  // Steps that are made at once learn it while they run.
  const refusedLater = messages("[[status 400]]{{input.text}}");
  expect(await run(refusedLater, next)).toMatchObject({ code: 4, stderr: stepBefore });
});

test("a step for lines that failed has nothing to do after one without a failure, and that is no failure", async () => {
  const chat = (content: string) =>
    `{ model: m, messages: [{ role: user, content: "${content}" }] }`;
  const again = `{ name: again, lines: failed, template: ${chat("{{custom_id}}")} }`;
  const ask = `{ name: ask, template: ${chat("{{input.text}}")} }`;
  writeFileSync(join(folder, "again.yaml"), `name: again\nsteps: [${ask}, ${again}]\n`);
  const told =
    "no line of step 1 has failed: again has nothing to do, and repaired.jsonl is not written";
  // The batch of the second step is made while the first one runs. One that is made later is refused.
  writeFileSync(join(folder, "held.jsonl"), '{"text":"Hi"}\n');
  const run = ["pipeline", "run", "again.yaml", "held.jsonl", "-o", "repaired.jsonl"];
  upstream.hold();
  const early = start(run);
  await expect.poll(() => early.said.stderr).toContain("step 2 of 2, again: ");
  upstream.release();
  for (const ended of [early.ended, batchd(...run), batchd(...run, "--from-step", "2")]) {
    const { code, stderr } = await ended;
    expect([code, stderr]).toEqual([0, expect.stringContaining(told)]);
    expect(stderr).not.toContain("To do ");
  }
  expect(existsSync(join(folder, "repaired.jsonl"))).toBe(false);
});

test("a batch of lines of another one says truly why it has none yet, whether that one runs or has ended", async () => {
  upstream.hold();
  const { id } = await service.submit(chatLines(1));
  const retried = await batchd("retry", id, "--lines", "all");
  expect((await batchd("show", retried.stdout.trim())).stdout).toMatch(
    /^why +waiting: its input is made of lines of another batch, which has to end first if it still runs$/m,
  );
  upstream.release();
  await service.events.reached("batch.completed", { batch: retried.stdout.trim() });
});
