/** An Azure resource takes the model as a part of its path, and with `*` the model is whatever a client writes. */
import { expect, test } from "vitest";
import { GOOD } from "../support/given.ts";
import { startTestService } from "../support/service.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const configFor = ({ url }: TestUpstream) => ({
  limits: { allow_mixed_models: true },
  upstreams: [
    {
      name: "azure",
      base_url: url.replace(/\/v1$/, ""),
      azure: { api_version: "2024-10-21" },
      models: ["*"],
    },
  ],
});

/** JSON strings, because some cannot be written in any other way. */
const UNNAMABLE = [
  '"\\ud800"',
  '"a\\udc00b"',
  '".."',
  '"."',
  '"%2e%2e"',
  '".%2E"',
  '"../other"',
  '"a/../../b"',
  '"a\\\\..\\\\b"',
  '"a\\nb"',
  '"a\\u0000"',
  '"a\\u007f"',
  `"${"m".repeat(1_025)}"`,
];
const NAMABLE: readonly (readonly [json: string, segment: string])[] = [
  ['"gpt-4o"', "gpt-4o"],
  ['"a/b"', "a%2Fb"],
  ['"100%"', "100%25"],
  ['"a?b#c"', "a%3Fb%23c"],
  ['"größe 😀"', "gr%C3%B6%C3%9Fe%20%F0%9F%98%80"],
  ['"..."', "..."],
  ['"..a"', "..a"],
];
const pathOf = (segment: string) =>
  `/openai/deployments/${segment}/chat/completions?api-version=2024-10-21`;

const bodyFor = (model: string) => `{"model":${model},"messages":[]}`;
const lineFor = (model: string, i: number) =>
  `{"custom_id":"l${i}","method":"POST","url":"/v1/chat/completions","body":${bodyFor(model)}}`;

test("what no path can name is the line's own error, and the lines beside it are answered", async () => {
  await using upstream = await startUpstream({ answers: () => GOOD });
  await using service = await startTestService({ config: configFor(upstream) });
  // Too long a name is found before anything is sent.
  const models = [...UNNAMABLE.slice(0, -1), ...NAMABLE.map(([json]) => json)];

  const batch = await service.run(models.map(lineFor));

  const failed = UNNAMABLE.length - 1;
  expect(batch.request_counts).toEqual({ total: models.length, completed: NAMABLE.length, failed });
  for (const row of await service.rows(batch.error_file_id)) {
    expect(row.response).toMatchObject({
      status_code: 404,
      body: { error: { code: "model_not_found" } },
    });
  }
  expect(new Set(upstream.seen.map(({ url }) => url))).toEqual(
    new Set(NAMABLE.map(([, segment]) => pathOf(segment))),
  );
  expect(service.events.count("chunk.failed")).toBe(0);
});

test("the same for interactive requests", async () => {
  await using upstream = await startUpstream({ answers: () => GOOD });
  await using service = await startTestService({ config: configFor(upstream) });
  const ask = (model: string) =>
    fetch(`${service.url}/v1/chat/completions`, { method: "POST", body: bodyFor(model) });
  for (const model of UNNAMABLE) {
    const answer = await ask(model);
    const { error } = (await answer.json()) as { error: { code: string } };
    expect([model, answer.status, error.code]).toEqual([model, 404, "model_not_found"]);
  }
  expect(upstream.seen).toEqual([]);
  for (const [model, segment] of NAMABLE) {
    expect((await ask(model)).status).toBe(200);
    expect(upstream.seen.at(-1)?.url).toBe(pathOf(segment));
  }
});
