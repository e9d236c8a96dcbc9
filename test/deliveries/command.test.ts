/** The commands on deliveries, against a real server and a real folder. */
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { runCommand } from "../support/command.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

test("the command delivers the results of a batch, waits for them, and lists where they went", async () => {
  using folder = temporaryFolder("batchd-share-");
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { locations: [{ name: "share", kind: "folder", path: folder.path, access: "write" }] },
  });
  const { id } = await service.run(chatLines(2));
  const run = (...args: readonly string[]) => runCommand([...args, "--url", `${service.url}/v1`]);
  const delivered = await run("deliver", id, "share", "--path", "team", "--wait");
  expect([delivered.code, delivered.stderr]).toEqual([0, ""]);
  expect(delivered.stdout).toContain(join(folder.path, "team", id));
  expect(readdirSync(join(folder.path, "team", id))).toContain("run.json");
  const listed = await run("deliveries", id, "--json");
  expect(JSON.parse(listed.stdout)).toMatchObject({ location: "share", status: "delivered" });
  const refused = await run("deliver", id, "nowhere");
  expect(refused.code).not.toBe(0);
  expect(refused.stderr).toContain("nowhere");
});
