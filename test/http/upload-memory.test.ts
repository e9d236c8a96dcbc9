/** Uploads to a storage that holds parts of them in memory. */
import { expect, test } from "vitest";
import { countedIn } from "../../src/api/upload-memory.ts";
import type { PublicError } from "../../src/errors.ts";
import { MemoryBudget } from "../../src/resources/memory-budget.ts";
import { FakeClock } from "../support/fake-clock.ts";

const PIECE = Buffer.alloc(1_000_000);
/** Half of it is for requests. */
const BUDGET_BYTES = 8_000_000;

async function* pieces(count: number) {
  for (let i = 0; i < count; i++) yield PIECE;
}

function open(maxBytes: number) {
  const clock = new FakeClock();
  const memory = new MemoryBudget(() => BUDGET_BYTES);
  const start = (count: number) => {
    const room = memory.open("requests", "project");
    const upload = countedIn(room, pieces(count), { maxBytes, clock });
    const read = async () => {
      let readCount = 0;
      for await (const _piece of upload) readCount++;
      return readCount;
    };
    return { room, read };
  };
  return { clock, memory, start };
}

test("an upload counts what the storage may hold of it, however long it is", async () => {
  const { memory, start } = open(2_000_000);
  const { room, read } = start(50);
  expect(await read()).toBe(50);
  expect(memory.heldBytes("requests")).toBe(2_000_000);
  room.release();
  expect(memory.heldBytes("requests")).toBe(0);
});

test("a folder holds nothing, so nothing is counted", async () => {
  const { memory, start } = open(0);
  expect(await start(50).read()).toBe(50);
  expect(memory.heldBytes("requests")).toBe(0);
});

test("an upload that comes byte by byte is stored in pieces, as each byte would take hundreds", async () => {
  const memory = new MemoryBudget(() => BUDGET_BYTES);
  const room = memory.open("requests", "project");
  const bytes = Buffer.from(Array.from({ length: 300_000 }, (_, i) => i % 251));
  async function* oneByOne() {
    for (let i = 0; i < bytes.length; i++) yield bytes.subarray(i, i + 1);
  }
  const stored: Buffer[] = [];
  const counting = { maxBytes: 2_000_000, clock: new FakeClock() };
  for await (const piece of countedIn(room, oneByOne(), counting)) stored.push(piece);
  expect(stored.length).toBeLessThan(6);
  expect(Buffer.concat(stored).equals(bytes)).toBe(true);
  expect(room.bytes).toBe(bytes.length);
});

test("without room an upload waits for another one to end, and is asked to come back after 10 s", async () => {
  const { clock, start } = open(3_000_000);
  const [first, second, third] = [start(4), start(4), start(4)];
  // One upload may always go on, so that nothing waits for ever.
  expect(await first.read()).toBe(4);
  const waiting = second.read();
  await clock.asleep(1, clock.nowMs() + 10_000);
  first.room.release();
  expect(await waiting).toBe(4);

  const refused = expect(third.read()).rejects.toMatchObject({
    error: "unavailable",
    retryAfterMs: 5_000,
  });
  await clock.asleep(1, clock.nowMs() + 10_000);
  clock.advance(10_000);
  await refused;
});

test("a project that holds most of the memory is refused as such, and one beside it because of the server", async () => {
  const { clock, memory } = open(0);
  const refusalOf = async (owner: string) => {
    using room = memory.open("requests", owner);
    const upload = countedIn(room, pieces(1), { maxBytes: 1_000_000, clock });
    await upload.next();
    const refused = upload.next().catch(({ error }: PublicError) => error);
    await clock.asleep(1, clock.nowMs() + 10_000);
    clock.advance(10_000);
    return await refused;
  };
  const hold = (owner: string, bytes: number) => memory.open("requests", owner).add(bytes);
  void hold("hasty", 2_800_000);
  expect(await refusalOf("hasty")).toBe("rate_limit_exceeded");
  void hold("hasty", 500_000);
  expect(await refusalOf("patient")).toBe("unavailable");
});
