import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { BatchdProcess } from "../support/process.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { Ballast, mountSmallDisk } from "../support/small-disk.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startTestApi, uploadInput } from "../support/test-http.ts";

const folder = forAllTests(temporaryFolder("batchd-full-")).path;
const dataDir = join(folder, "data");
const disk = forAllTests(mountSmallDisk(dataDir, 4 * 1024 * 1024));

describe.skipIf(disk === null)("an upload to a full disk", () => {
  test("is a 503 that says so, leaves nothing, and passes once there is room", async () => {
    await using api = await startTestApi({ dataDir });
    const form = new FormData();
    form.set("purpose", "user_data");
    form.set("file", new Blob([Buffer.alloc(8 * 1024 * 1024)]), "large");
    const response = await api.fetch("/v1/files", { method: "POST", body: form });
    expect(response.status).toBe(503);
    expect(await response.json()).toEqual({
      error: {
        message: expect.stringContaining("disk of the server is full"),
        type: "server_error",
        param: null,
        code: null,
      },
    });
    expect(api.storedFiles()).toEqual([]);
    const entries = api.log.map((line) => JSON.parse(line));
    expect(entries.find((entry) => entry.status === 503).err.stack).toContain("ENOSPC");
    expect((await api.client.files.list()).data).toEqual([]);
    expect(await uploadInput(api)).toMatch(/^file-/);
  });
});

const MIB = 1024 * 1024;
const filled = join(folder, "filled");
const filledDisk = forAllTests(mountSmallDisk(filled, 16 * MIB));

describe.skipIf(filledDisk === null)("a disk that uploads have filled", () => {
  test("leaves the database room for deletes, and for the next start", async () => {
    const before = await startTestService({ dataDir: filled });
    const ids: string[] = [];
    for (const bytes of [MIB, MIB / 16, 4096]) ids.push(...(await uploadUntilFull(before, bytes)));
    await before.close();
    await using after = await startTestService({ dataDir: filled });
    for (const id of ids.slice(0, 4)) await after.openai.files.delete(id);
    expect(await after.upload(chatLines(1))).toMatch(/^file-/);
  });
});

const full = join(folder, "full");
const fullDisk = forAllTests(mountSmallDisk(full, 4 * MIB));

describe.skipIf(fullDisk === null)("a disk that others have filled", () => {
  test("refuses a start in words that name it, and takes it once there is room", async () => {
    await (await startTestService({ dataDir: full })).close();
    const ballast = new Ballast(full);
    ballast.fillBut(0);
    await using refused = new BatchdProcess(["serve", "--port", "0", "--data-dir", full]);
    expect((await refused.exited()).stderr).toMatch(
      /^batchd: cannot open the data in .*: the disk is full\n$/,
    );
    ballast.remove();
    await using server = new BatchdProcess(["serve", "--port", "0", "--data-dir", full]);
    await server.listening();
  });
});

/** Returns the ids of the files that there was room for. */
async function uploadUntilFull({ openai }: TestService, bytes: number): Promise<string[]> {
  const ids: string[] = [];
  for (;;) {
    const file = new File([Buffer.alloc(bytes)], "filler");
    const made = await openai.files
      .create({ file, purpose: "user_data" })
      .catch((error: unknown) => {
        expect(error).toMatchObject({ status: 503, message: expect.stringContaining("is full") });
        return null;
      });
    if (made === null) return ids;
    ids.push(made.id);
  }
}
