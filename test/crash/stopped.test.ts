/** A process that stands still for a while, as in a container that is paused, and then goes on. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { submitLines } from "../support/batches.ts";
import { serve } from "../support/serve.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const TIMEOUT_SECONDS = 3;
const CHAT = { model: "test-model", messages: [{ role: "user" as const, content: "Hi" }] };
const LINE = JSON.stringify({
  custom_id: "one",
  method: "POST",
  url: "/v1/chat/completions",
  body: CHAT,
});

function start(folder: string, base_url: string, timeout_seconds: number) {
  const path = join(folder, "batchd.yaml");
  const upstreams = [{ name: "only", base_url, models: ["test-model"], timeout_seconds }];
  // JSON is YAML too.
  writeFileSync(path, JSON.stringify({ data_dir: join(folder, "data"), upstreams }));
  return serve(["--port", "0", "--config", path]);
}

test("an answer that came while the server stood still counts, though its time was over then", async () => {
  using folder = temporaryFolder("batchd-stopped-");
  using otherFolder = temporaryFolder("batchd-stopped-other-");
  await using upstream = await startUpstream();
  await using silent = await startUpstream();
  upstream.hold();
  silent.hold();
  const { server, openai } = await start(folder.path, upstream.url, TIMEOUT_SECONDS);
  const other = await start(otherFolder.path, silent.url, 2 * TIMEOUT_SECONDS);

  const { id } = await submitLines(openai, [LINE]);
  await upstream.reached(1);
  server.signal("SIGSTOP");
  upstream.release();
  // Another server tells when the time of the line has long passed.
  await expect(other.openai.chat.completions.create(CHAT)).rejects.toThrow("504");
  server.signal("SIGCONT");

  await server.batchEnded(id);
  expect(await openai.batches.retrieve(id)).toMatchObject({
    status: "completed",
    request_counts: { total: 1, completed: 1, failed: 0 },
  });
  expect(upstream.total).toBe(1);
  await Promise.all([server.kill("SIGTERM"), other.server.kill("SIGTERM")]);
});
