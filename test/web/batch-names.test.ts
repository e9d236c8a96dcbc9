/** What the list of batches calls them: by HTTP, without a browser. */
import { expect, test } from "vitest";
import { derive } from "../support/derived.ts";
import { chatLine, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

test("the list shows the name of an input that is made later than its batch", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  upstream.hold();
  const source = await service.submit([chatLine("a", "Hello")]);
  await upstream.reached(1);
  const { batch } = await derive(service, { batch: source.id, lines: "all" });
  const list = async () => {
    const answer = await fetch(`${service.url}/`, { headers: { accept: "text/html" } });
    return answer.text();
  };
  const name = `${source.id}_all.jsonl`;
  const before = await list();
  expect(before).toContain(batch.id);
  expect(before).not.toContain(name);
  upstream.release();
  await service.ended(batch.id);
  expect(await list()).toContain(name);
});

test("a name that is too long for the list ends between two characters", async () => {
  await using service = await startTestService({});
  await service.openai.batches.create({
    input_file_id: await service.upload([chatLine("a", "Hello")]),
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
    metadata: { name: `a${"🌙".repeat(40)}` },
  });
  const list = await fetch(`${service.url}/`, { headers: { accept: "text/html" } });
  expect(await list.text()).toContain(`<bdi>a${"🌙".repeat(29)}…</bdi>`);
});
