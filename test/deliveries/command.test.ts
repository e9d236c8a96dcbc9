/** The commands on deliveries, against a real server and a real folder. */

import { readdirSync } from "node:fs";
import { createServer, request } from "node:http";
import { join } from "node:path";
import { expect, test } from "vitest";
import { runCommand } from "../support/command.ts";
import { listening } from "../support/listening.ts";
import { chatLines } from "../support/service.ts";
import { startShare } from "../support/share.ts";

test("the command delivers the results of a batch, waits for them, and lists where they went", async () => {
  await using share = await startShare();
  const { service } = share;
  const { id } = await service.run(chatLines(2));
  const run = (...args: readonly string[]) => runCommand([...args, "--url", `${service.url}/v1`]);
  const delivered = await run("deliver", id, "share", "--path", "team", "--wait");
  expect([delivered.code, delivered.stderr]).toEqual([0, ""]);
  expect(delivered.stdout).toContain(join(share.path, "team", id));
  expect(readdirSync(join(share.path, "team", id))).toContain("run.json");
  const table = (await run("deliveries", id)).stdout.split("\n");
  expect(table[0]?.indexOf("STATUS")).toBe(table[1]?.indexOf("delivered"));
  const listed = await run("deliveries", id, "--json");
  expect(JSON.parse(listed.stdout)).toMatchObject({ location: "share", status: "delivered" });
  const refused = await run("deliver", id, "nowhere");
  expect(refused.code).not.toBe(0);
  expect(refused.stderr).toContain("nowhere");
});

test("the command lists all deliveries of a batch, although a page of the list has a hundred", async () => {
  const all = Array.from({ length: 101 }, (_, n) => `dlv_${n}`);
  const made = { object: "delivery", status: "delivered", batch_id: "batch_1", location: "share" };
  // The same list as the server has it, of more deliveries than a test can wait for.
  const server = createServer(({ url }, answer) => {
    const after = new URL(url ?? "", "http://localhost").searchParams.get("after");
    const from = after === null ? 0 : all.indexOf(after) + 1;
    const data = all.slice(from, from + 100).map((each) => ({ ...made, id: each }));
    const page = { object: "list", data, has_more: from + 100 < all.length };
    answer.setHeader("content-type", "application/json").end(JSON.stringify(page));
  });
  const url = `http://127.0.0.1:${await listening(server)}/v1`;
  const { stdout } = await runCommand(["deliveries", "batch_1", "--json", "--url", url]);
  const lines = stdout.trimEnd().split("\n");
  expect(lines.map((line) => JSON.parse(line).id)).toEqual(all);
});

test("the command ends with the codes of its help, none of which is for batches", async () => {
  const { stdout } = await runCommand(["deliver", "--help"]);
  const codes = stdout.slice(stdout.indexOf("Exit codes:"), stdout.indexOf("Environment:"));
  expect([...codes.matchAll(/^ {2}(\d+) /gm)].map(([, code]) => code)).toEqual(["0", "1", "130"]);
});

test("the command waits for a delivery while its server is away, and makes no second one", async () => {
  await using share = await startShare();
  const { service } = share;
  const { id } = await service.run(chatLines(2));
  let lost = 0;
  // What a load balancer says while its server starts again, also of a request that was carried out.
  const balancer = createServer((asked, answer) => {
    const { method, url, headers } = asked;
    const passed = request(`${service.url}${url}`, { method, headers }, (from) => {
      const isLost = url?.includes("/deliveries") && ++lost <= 8 && lost !== 2;
      if (isLost) answer.writeHead(503, { "retry-after-ms": "1" }).end();
      else from.pipe(answer.writeHead(from.statusCode ?? 500, from.headers));
      if (isLost) from.resume();
    });
    asked.pipe(passed);
  });
  const url = `http://127.0.0.1:${await listening(balancer)}/v1`;
  const { code, stdout, stderr } = await runCommand([
    "deliver",
    id,
    "share",
    "--wait",
    "--url",
    url,
  ]);
  expect(stderr).toMatch(/^batchd: .*503.*; trying again\n$/);
  expect(stdout).toContain(join(share.path, id));
  expect(code).toBe(0);
  const { data } = await service.openai.get<{ data: unknown[] }>(`/batches/${id}/deliveries`);
  expect(data).toHaveLength(1);
});
