/** Files that go up in parts, and a long input of a run: what is not taken, and what is interrupted. */
import { once } from "node:events";
import { existsSync, readdirSync, truncateSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { expect, test } from "vitest";
import { runCommand } from "../support/command.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { listening } from "../support/listening.ts";
import { openCount } from "../support/open-files.ts";
import { BatchdProcess } from "../support/process.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";

const folder = forAllTests(temporaryFolder("batchd-large-")).path;
const LARGE_BYTES = 65 * 1024 * 1024;

const large = join(folder, "large.jsonl");
writeFileSync(large, "");
truncateSync(large, LARGE_BYTES);

test("a file that is larger than the server takes is refused by its name and its size", async () => {
  const limits = { max_file_bytes: 1_000_000 };
  await using service = await startTestService({ config: { limits } });
  const refused = await runCommand(["files", "upload", large], { BATCHD_URL: service.url });
  expect(refused).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(
      /^batchd: large\.jsonl has 68\.2 MB, and the server takes no file of this size: .*<= 1000000,.*\n$/,
    ),
  });
});

test("a server that is away for six tries costs no part of an upload, and not its completion", async () => {
  const calls: string[] = [];
  const server = createServer((request, response) => {
    const call = /[^/]+$/.exec(request.url ?? "")![0];
    calls.push(call);
    const sent = calls.filter((each) => each === call).length;
    const isAway = call === "parts" ? sent > 1 && sent < 8 : call === "complete" && sent < 7;
    request.resume().on("end", () => {
      const head = { "content-type": "application/json", "retry-after-ms": "1" };
      response.writeHead(isAway ? 503 : 200, head);
      response.end(JSON.stringify({ id: call, file: { id: "made" } }));
    });
  });
  const env = { BATCHD_URL: `http://127.0.0.1:${await listening(server)}/v1` };
  const up = await runCommand(["files", "upload", large], env);
  expect(up).toMatchObject({ code: 0, stdout: "made\n", stderr: "" });
  expect(calls).toEqual(["uploads", ...Array(8).fill("parts"), ...Array(7).fill("complete")]);
});

test.each(["SIGINT", "SIGTERM"] as const)(
  "an upload that %s ends is taken back, and leaves nothing at the server",
  async (signal) => {
    const server = createServer((request, response) => {
      const call = /[^/]+$/.exec(request.url ?? "")![0];
      // The part never arrives.
      if (call === "parts") server.emit("part");
      else request.resume().on("end", () => response.end(JSON.stringify({ id: "upload_1" })));
      if (call === "cancel") server.emit("cancel", request.url);
      response.setHeader("content-type", "application/json");
    });
    const [part, cancel] = [once(server, "part"), once(server, "cancel")];
    const env = { BATCHD_URL: `http://127.0.0.1:${await listening(server)}/v1` };
    await using uploading = new BatchdProcess(["files", "upload", large], env);
    await part;
    uploading.signal(signal);
    expect(await uploading.exited()).toMatchObject({
      code: 130,
      stdout: "",
      stderr: "batchd: interrupted\n",
    });
    expect(await cancel).toEqual(["/v1/uploads/upload_1/cancel"]);
  },
);

test("a run that is interrupted while it copies a long input ends at once, and keeps nothing of it", async () => {
  const input = join(folder, "long-input.jsonl");
  const filler = `${JSON.stringify({ filler: "x".repeat(1024 * 1024) })}\n`;
  writeFileSync(input, `${chatLines(1)[0]}\n${filler.repeat(400)}`);
  const args = ["run", input, "-o", join(folder, "o.jsonl"), "--upstream", "http://127.0.0.1:1/v1"];
  const blobs = join(folder, ".o.jsonl.batchd/blobs");
  const copying = () => existsSync(join(blobs, ".tmp")) && readdirSync(join(blobs, ".tmp"));
  await using running = new BatchdProcess(args);
  await expect.poll(copying, { interval: 5, timeout: 30_000 }).toHaveLength(1);
  running.signal("SIGTERM");
  expect(await running.exited()).toMatchObject({ code: 130, stderr: "batchd: interrupted\n" });
  expect(readdirSync(blobs, { recursive: true })).toEqual([".tmp"]);
});

test("a pipeline that is interrupted while it reads long data ends at once", async () => {
  const data = join(folder, "long-data.jsonl");
  const steps = join(folder, "steps.yaml");
  writeFileSync(steps, "name: a\nsteps: [{ name: b }]\n");
  // It has no bytes on the disk, and takes hours to read.
  writeFileSync(data, "");
  truncateSync(data, 2 ** 40);
  const env = { BATCHD_URL: "http://127.0.0.1:1" };
  await using running = new BatchdProcess(["pipeline", "run", steps, data], env);
  await expect
    .poll(() => openCount("/long-data.jsonl", running.pid), { interval: 5, timeout: 60_000 })
    .toBe(1);
  running.signal("SIGINT");
  expect(await running.exited()).toMatchObject({ code: 130, stderr: "batchd: interrupted\n" });
});
