/** Projects share an upstream by their weights, seen from the upstream. */
import { expect, test } from "vitest";
import { createBatch } from "../support/batches.ts";
import { clientOf } from "../support/projects.ts";
import { chatLine, startTestService, type TestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const LINES = 400;
const SLOTS = 4;

const keys = ["light", "heavy"].map((name) => ({ name, key: `key-${name}`, project: name }));
const configOf = (url: string, projects: readonly object[]) => ({
  auth: { keys },
  upstreams: [{ name: "one", base_url: url, models: ["*"], max_concurrency: SLOTS }],
  projects,
});

async function submit({ url }: TestService, project: string): Promise<string> {
  const openai = clientOf(url, `key-${project}`);
  const lines = Array.from({ length: LINES }, (_, n) => chatLine(`${project}-${n}`, "Hello"));
  const file = new File([`${lines.join("\n")}\n`], "input.jsonl");
  const { id } = await openai.files.create({ file, purpose: "batch" });
  const batch = await createBatch(openai, id);
  return batch.id;
}

test("a project of weight 2 gets twice the lines of one of weight 1 while both wait", async () => {
  await using upstream = await startUpstream();
  upstream.hold();
  const projects = [{ name: "heavy", weight: 2 }];
  await using service = await startTestService({ config: configOf(upstream.url, projects) });
  const batches = [await submit(service, "light"), await submit(service, "heavy")];
  for (const batch of batches) await service.events.reached("chunk.claimed", { batch });
  const before = upstream.seen.length;
  upstream.release();
  for (const batch of batches) await service.events.reached("batch.completed", { batch });

  const first = upstream.seen.slice(before, before + 300);
  const heavy = first.filter(({ user }) => user.startsWith("heavy")).length;
  // The lines that had their slots before both waited may be of either project.
  expect(Math.abs(heavy - 200)).toBeLessThanOrEqual(2 * SLOTS);
});
