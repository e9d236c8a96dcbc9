/** What the page of a batch says of it: by HTTP, without a browser. */
import { expect, test } from "vitest";
import { chatTemplate, derive } from "../support/derived.ts";
import { chatLine, chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

test("its cost and its source are called what they are, and a pause has no end that comes by itself", async () => {
  await using upstream = await startUpstream();
  const prices = [{ model: "*", currency: "USD", input: "1", output: "1" }];
  const upstreams = [{ name: "u", base_url: upstream.url, models: ["*"] }];
  await using service = await startTestService({ config: { upstreams, prices } });
  const pageOf = async (id: string) => {
    const headers = { accept: "text/html" };
    return (await fetch(`${service.url}/batches/${id}`, { headers })).text();
  };
  const ended = await service.run(chatLines(1));
  expect(await pageOf(ended.id)).toContain("<dt>Cost</dt>");

  const template = chatTemplate("Is this right? {{output.choices.0.message.content}}");
  const asking = await derive(service, { batch: ended.id, lines: "succeeded", template });
  await service.ended(asking.batch.id);
  expect(await pageOf(asking.batch.id)).toContain("<dt>Asks about</dt>");
  const again = await derive(service, { batch: ended.id, lines: "all" });
  await service.ended(again.batch.id);
  expect(await pageOf(again.batch.id)).toContain("<dt>Runs again</dt>");

  upstream.hold();
  const running = await service.submit([chatLine("a", "Hello")]);
  await upstream.reached(4);
  expect(await pageOf(running.id)).toContain("<dt>Cost so far</dt>");
  await fetch(`${service.url}/v1/batches/${running.id}/pause`, { method: "POST" });
  expect(await pageOf(running.id)).toContain("once it goes on");
  upstream.release();
});

test("to resume stands out where the batch goes on by it, and not at a quota, where it would pause again", async () => {
  await using upstream = await startUpstream();
  const projects = [{ name: "default", quotas: { tokens_per_day: 1 } }];
  const upstreams = [{ name: "u", base_url: upstream.url, models: ["*"] }];
  await using service = await startTestService({ config: { upstreams, projects } });
  const { id } = await service.submit(chatLines(1));
  const resumeButton = async () => {
    const headers = { accept: "text/html" };
    const page = await (await fetch(`${service.url}/batches/${id}`, { headers })).text();
    return /class="(\w+)"[^>]*>Resume</.exec(page)?.[1];
  };
  await expect.poll(resumeButton).toBe("plain");
  await fetch(`${service.url}/v1/batches/${id}/pause`, { method: "POST" });
  expect(await resumeButton()).toBe("primary");
});
