import { expect, test } from "vitest";
import { chatLine, startTestService } from "../../support/service.ts";
import { startUpstream } from "../../support/upstream.ts";

/** A body that any re-encoding would change. */
const FRAGILE_BODY =
  '{"zeta":12345678901234567890,"model":"test-model" , "é\\u00e9":1.0,"messages":[{"content":"\\u0041\\/ [[bigint]]","role":"user"}],"__proto__":{"a":1e2},"alpha":[ ],"user":"big"}';

test("answers come back as the upstream wrote them, on one line", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });

  const batch = await service.run([chatLine("big", "[[bigint]]")]);

  const direct = await fetch(`${upstream.url}/chat/completions`, {
    method: "POST",
    body: upstream.seen[0]!.body,
  });
  const wanted = (await direct.text()).replaceAll(/[\r\n]/g, " ");
  const text = await service.text(batch.output_file_id);
  expect(text).toContain(`"body":${wanted}},"error":null}\n`);
  expect(text.split("\n")).toHaveLength(2);
});

test("an answer with a byte order mark is taken without it, as clients of OpenAI do", async () => {
  await using upstream = await startUpstream({
    answers: ({ user }) => ({
      ...(user === "bad" && { status: 400 }),
      headers: { "content-type": "application/json; charset=utf-8" },
      body: `\ufeff{"error":{"code":"marked"},"id":1,"pad":"${"x".repeat(user === "long" ? 300_000 : 0)}"}`,
    }),
  });
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const lines = ["short", "long", "bad"].map((user) => chatLine(user, "Hi", { user }));

  const batch = await service.run(lines);

  expect(batch.request_counts).toEqual({ total: 3, completed: 2, failed: 1 });
  const text = await service.text(batch.output_file_id);
  expect(text.match(/"body":\{"error":/g)).toHaveLength(2);
  const [failed] = await service.rows(batch.error_file_id);
  expect(failed?.response?.body).toMatchObject({ error: { code: "marked" }, id: 1 });
});

/** The line breaks of Python's `splitlines`, and so of `iter_lines` of the official client, which JSON takes in strings. */
const BREAKS = "\u0085\u2028\u2029";

test("a row of a result is one line to readers that break lines as Unicode does", async () => {
  const said = (text: string) => `{"said":"${text}","n":9007199254740993,"é":"\\u2028 \\/"}`;
  // A break of three bytes begins two bytes before, one byte before and at the end of each step of 64 KiB.
  const filler = [65_536 - 9 - 2, 65_536 - 4, 65_536 - 4].map((count) => "x".repeat(count));
  const texts: Record<string, string> = {
    short: `a${BREAKS}b`,
    long: filler.map((each) => each + BREAKS.at(-1)).join("") + BREAKS,
    refused: BREAKS,
  };
  await using upstream = await startUpstream({
    answers: ({ user }) => ({
      ...(user === "page" && { status: 400 }),
      body: user === "page" ? `<p>${BREAKS}</p>` : said(texts[user] ?? BREAKS),
      ...(user === "refused" && { status: 422 }),
    }),
  });
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const users = ["short", "long", "refused", "page"];

  const batch = await service.run(
    users.map((user) => chatLine(`${user}${BREAKS}`, "Hi", { user })),
  );

  const output = await service.text(batch.output_file_id);
  const errors = await service.text(batch.error_file_id);
  const rows = (output + errors).split(/[\n\u0085\u2028\u2029]/).slice(0, -1);
  expect(rows.map((row) => JSON.parse(row).custom_id)).toEqual(
    users.map((user) => `${user}${BREAKS}`),
  );
  const escaped = (text: string) =>
    text
      .replaceAll("\u0085", "\\u0085")
      .replaceAll("\u2028", "\\u2028")
      .replaceAll("\u2029", "\\u2029");
  for (const user of ["short", "long", "refused"]) {
    expect(output + errors).toContain(`"body":${said(escaped(texts[user]!))}},"error":null}\n`);
  }
});

test("an alias replaces the model name and nothing else", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    config: {
      upstreams: [
        {
          name: "gpu",
          base_url: upstream.url,
          models: [{ name: "test-model", upstream_model: 'org/real "one"' }],
        },
      ],
    },
  });
  const line = `{"custom_id":"big","method":"POST","url":"/v1/chat/completions","body":${FRAGILE_BODY}}`;

  await service.run([line]);

  expect(upstream.seen[0]!.body).toBe(FRAGILE_BODY.replace('"test-model"', '"org/real \\"one\\""'));
});

test("a field that the operator forces holds, however often a line repeats another one", async () => {
  await using upstream = await startUpstream();
  const models = [{ name: "test-model", upstream_model: "real" }];
  const forced = { base_url: upstream.url, models, extra_body: { store: false } };
  await using service = await startTestService({
    config: { upstreams: [{ name: "gpu", ...forced }] },
  });
  const body = `{"store":true,${'"model":"test-model",'.repeat(5_000)}"messages":[]}`;

  await service.run([
    `{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":${body}}`,
  ]);

  const sent = JSON.parse(upstream.seen[0]!.body);
  expect(sent).toMatchObject({ store: false, model: "real" });
});
