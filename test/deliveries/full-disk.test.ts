/** A delivery to a disk without room for it waits until there is room. Its batch does not notice. */
import { spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, statfsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import type { DeliveryObject } from "../../src/contract/delivery.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { TestRepository } from "../support/git-repository.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { mountSmallDisk } from "../support/small-disk.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const MIB = 1024 * 1024;
const folder = forAllTests(temporaryFolder("batchd-full-share-")).path;
const share = join(folder, "share");
const disk = forAllTests(mountSmallDisk(share, 2 * MIB));
const dataDir = join(folder, "data");
const ownDisk = forAllTests(mountSmallDisk(dataDir, 32 * MIB));

/** Names that hardly compress, and that git has to fetch with the base branch. */
const manyNames = (count: number) =>
  Object.fromEntries(
    Array.from({ length: count }, (_, i) => [
      `${i % 256}/${randomBytes(150).toString("base64url")}`,
      "",
    ]),
  );

describe.skipIf(disk === null)("on a small disk", () => {
  test("results that do not fit are delivered, once, when there is room for them", async () => {
    await using upstream = await startUpstream();
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      config: { locations: [{ name: "share", kind: "folder", path: share, access: "write" }] },
    });
    const { id, output_file_id } = await service.run(chatLines(1, () => "[[big 3000000]]"));
    const path = `/batches/${id}/deliveries`;
    const made = (await service.openai.post(path, {
      body: { location: "share" },
    })) as DeliveryObject;
    await service.events.reached("delivery.attempt_failed", { delivery: made.id });
    const waiting = await service.openai.get(`${path}/${made.id}`);
    expect(waiting).toMatchObject({
      status: "pending",
      error: { code: "unavailable" },
    });
    expect((waiting as DeliveryObject).error?.message).toContain("does not fit on the disk");
    expect(readdirSync(share)).toEqual([]);
    expect((await service.openai.batches.retrieve(id)).status).toBe("completed");
    spawnSync("mount", ["-o", `remount,size=${16 * MIB}`, share]);
    await service.events.reached("delivery.delivered", { delivery: made.id });
    expect(readdirSync(share)).toEqual([id]);
    expect(readdirSync(join(share, id)).toSorted()).toEqual(["output.jsonl", "run.json"]);
    const output = readFileSync(join(share, id, "output.jsonl"), "utf8");
    expect(output === (await service.text(output_file_id))).toBe(true);
    expect((await service.openai.batches.retrieve(id)).status).toBe("completed");
  });

  test.skipIf(ownDisk === null)(
    "tables that do not fit on the server's own disk wait, and say why",
    async () => {
      const place = join(folder, "tables");
      mkdirSync(place);
      await using upstream = await startUpstream();
      await using service = await startTestService({
        dataDir,
        upstreamUrl: upstream.url,
        config: { locations: [{ name: "share", kind: "folder", path: place, access: "write" }] },
      });
      const { id } = await service.run(chatLines(1));
      const { bavail, bsize } = statfsSync(dataDir);
      const filler = join(dataDir, "filler");
      writeFileSync(filler, Buffer.alloc(bavail * bsize - MIB / 2));

      const path = `/batches/${id}/deliveries`;
      const made = (await service.openai.post(path, {
        body: { location: "share", format: "csv" },
      })) as DeliveryObject;
      await service.events.reached("delivery.attempt_failed", { delivery: made.id });
      expect(await service.openai.get(`${path}/${made.id}`)).toMatchObject({
        status: "pending",
        error: { code: "storage_unavailable", message: "The disk of the server is full." },
      });

      rmSync(filler);
      await service.events.reached("delivery.delivered", { delivery: made.id });
      expect(readdirSync(join(place, id)).toSorted()).toEqual(["output.csv", "run.json"]);
    },
  );

  test.skipIf(ownDisk === null)(
    "a repository whose fetch would fill the server's own disk waits, and leaves room for all else",
    async () => {
      using repository = new TestRepository();
      repository.commit(manyNames(80_000));
      await using upstream = await startUpstream();
      const evals = { name: "evals", kind: "git", repository: repository.path, access: "write" };
      await using service = await startTestService({
        dataDir,
        upstreamUrl: upstream.url,
        config: { locations: [evals] },
      });
      const { id } = await service.run(chatLines(1));
      const path = `/batches/${id}/deliveries`;
      const made = (await service.openai.post(path, {
        body: { location: "evals" },
      })) as DeliveryObject;
      const tries = ["delivery.attempt_failed", "delivery.delivered"] as const;
      await Promise.race(tries.map((end) => service.events.reached(end, { delivery: made.id })));
      const message = "the repository sends more than there is room for on the disk of the server";
      expect(await service.openai.get(`${path}/${made.id}`)).toMatchObject({
        status: "pending",
        error: { code: "unavailable", message },
      });
      expect(readdirSync(join(dataDir, "locations"))).toEqual([]);
      spawnSync("mount", ["-o", `remount,size=${128 * MIB}`, dataDir]);
      await service.events.reached("delivery.delivered", { delivery: made.id });
      expect(repository.branches).toEqual([`batch/${id}`, "main"]);
    },
  );
});
