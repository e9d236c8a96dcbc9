import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { mountSmallDisk } from "../support/small-disk.ts";
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
