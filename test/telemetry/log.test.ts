import { expect, test } from "vitest";
import { LOG_EVENTS } from "../../src/telemetry/log-events.ts";
import { chatLine, chatLines, startTestService } from "../support/service.ts";
import { isSource, readSources } from "../support/source-tree.ts";
import { startUpstream } from "../support/upstream.ts";

test("what the log says of a line names its batch, its chunk, its number and the upstream's request", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const { id } = await service.run([chatLine("good", "Hello"), chatLine("bad", "[[status 404]]")]);
  const upstreamRequestId = expect.stringMatching(/^req-[12]$/);
  const lines = service.events.all.filter(({ event }) => event.startsWith("line."));
  expect(lines.toSorted((a, b) => Number(a["line"]) - Number(b["line"]))).toMatchObject([
    { batch: id, chunk: 0, line: 1, outcome: "answered", upstreamRequestId },
    { batch: id, chunk: 0, line: 2, outcome: "answered", upstreamRequestId },
  ]);
});

test("a file and a batch can be traced back to the request that made them", async () => {
  await using service = await startTestService();
  const file = new File(chatLines(1), "input.jsonl");
  const uploaded = await service.openai.files.create({ file, purpose: "batch" }).withResponse();
  const created = await service.openai.batches
    .create({
      input_file_id: uploaded.data.id,
      endpoint: "/v1/chat/completions",
      completion_window: "24h",
    })
    .withResponse();
  const requestIdOf = (event: string) =>
    service.events.all.find((each) => each.event === event)?.["requestId"];
  expect(requestIdOf("file.stored")).toBe(uploaded.response.headers.get("x-request-id"));
  expect(requestIdOf("batch.created")).toBe(created.response.headers.get("x-request-id"));
});

test("every event that is documented is one that the server logs", () => {
  const source = readSources("src")
    .filter((file) => isSource(file) && file.path !== "src/telemetry/log-events.ts")
    .map(({ text }) => text)
    .join("\n");
  const documented = Object.values(LOG_EVENTS).flatMap((events) => Object.keys(events));
  expect(documented.filter((event) => !source.includes(`"${event}"`))).toEqual([]);
});
