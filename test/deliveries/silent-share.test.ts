/** Locations in a folder whose file system does not answer any more, as a share whose server is away. */
import { mkdirSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { FolderLocation } from "../../src/locations/folder/folder.ts";
import { FakeClock } from "../support/fake-clock.ts";
import { aCall, aParcel } from "../support/parcels.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { mountSilentDisk } from "../support/silent-disk.ts";
import { startUpstream } from "../support/upstream.ts";

const PATIENCE_MS = 5 * 60 * 1000;
const PLACES = ["first", "second"] as const;

async function deliverToBoth(service: TestService, input_file_id: string): Promise<string> {
  const deliver = PLACES.map((location) => ({ location }));
  const body = {
    input_file_id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
    x_batchd: { deliver },
  };
  const { id } = (await service.openai.post("/batches", { body })) as { id: string };
  await service.ended(id);
  return id;
}

async function statusesOf(service: TestService, batch: string): Promise<string[]> {
  const { data } = (await service.openai.get(`/batches/${batch}/deliveries`)) as {
    data: { status: string }[];
  };
  return data.map(({ status }) => status);
}

test("a share that does not answer holds up deliveries to it, and no uploads, batches or journals", async ({
  skip,
}) => {
  const disk = mountSilentDisk();
  if (disk === null) return skip("this process may not mount a file system");
  await using upstream = await startUpstream();
  const locations = PLACES.map((name) => {
    const path = join(disk.path, name);
    mkdirSync(path);
    return { name, kind: "folder", path, access: "write" };
  });
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { locations },
  });
  const input = await service.upload(chatLines(3));
  disk.silence();
  const batches = [await deliverToBoth(service, input), await deliverToBoth(service, input)];
  const statuses = async () =>
    (await Promise.all(batches.map((batch) => statusesOf(service, batch)))).flat();
  await expect.poll(statuses).toEqual(Array(4).fill("delivering"));

  expect((await service.run(chatLines(50))).status).toBe("completed");
  expect((await fetch(`${service.url}/ready`)).status).toBe(200);

  disk.goOn();
  await expect.poll(statuses, { timeout: 20_000 }).toEqual(Array(4).fill("delivered"));
});

test("a folder that does not answer is unavailable after a while, and at once from then on, until it answers again", async ({
  skip,
}) => {
  const disk = mountSilentDisk();
  if (disk === null) return skip("this process may not mount a file system");
  const clock = new FakeClock();
  const location = new FolderLocation({ name: "share", path: disk.path }, { clock });
  const silent = { failure: "unavailable", message: "the folder of share does not answer" };
  const parcel = aParcel();
  disk.silence();
  const begun = Promise.withResolvers<void>();
  const progress = { saved: null, save: async () => begun.resolve() };
  const first = location.deliver(parcel, aCall({ progress }));
  const failed = expect(first).rejects.toMatchObject(silent);
  // From here on it writes.
  await begun.promise;
  await clock.asleep(1, clock.nowMs() + PATIENCE_MS);
  clock.advance(PATIENCE_MS);
  await failed;
  await expect(location.deliver(parcel, aCall())).rejects.toMatchObject(silent);

  disk.goOn();

  const delivered = () => location.deliver(parcel, aCall()).then(() => "delivered", String);
  await expect.poll(delivered).toBe("delivered");
  expect(readdirSync(disk.path)).toEqual(expect.arrayContaining([parcel.batchId]));
});
