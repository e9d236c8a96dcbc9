/** Clients that ask for pages of lists and do not read them: the pages are counted until they are read. */
import { connect } from "node:net";
import { setImmediate } from "node:timers/promises";
import { expect, test } from "vitest";
import { FakeClock } from "../support/fake-clock.ts";
import { clientOf } from "../support/projects.ts";
import { Scrape } from "../support/prometheus.ts";
import { chatLines, startTestService } from "../support/service.ts";

const MIB = 1024 * 1024;
/** The server waits so long for room. */
const ROOM_WAIT_MS = 10_000;
/** Each letter is six bytes in a page, so a batch with these takes 49 kB. */
const METADATA = Object.fromEntries(
  Array.from({ length: 16 }, (_, n) => [`key-${n}`, "é".repeat(512)]),
);

const keys = ["hasty", "patient"].map((project) => ({
  name: project,
  key: `key-${project}`,
  project,
}));

test("pages that their clients do not read have a bound in memory, and leave room for other projects", async () => {
  const clock = new FakeClock();
  const config = { auth: { keys }, limits: { memory_bytes: 16 * MIB } };
  await using service = await startTestService({ clock, config });
  const makeBatches = async (project: string, count: number) => {
    const openai = clientOf(service.url, `key-${project}`);
    const file = new File([chatLines(1).join("\n")], "in.jsonl");
    const { id } = await openai.files.create({ file, purpose: "batch" });
    for (let n = 0; n < count; n++) {
      await openai.batches.create({
        input_file_id: id,
        endpoint: "/v1/chat/completions",
        completion_window: "24h",
        metadata: METADATA,
      });
    }
  };
  await makeBatches("hasty", 82);
  await makeBatches("patient", 2);
  /** Reads its page, which would be held otherwise. */
  const list = async (project: string) => {
    const answer = await fetch(`${service.url}/v1/batches?limit=100`, {
      headers: { authorization: `Bearer key-${project}` },
    });
    return { status: answer.status, headers: answer.headers, text: await answer.text() };
  };
  const heldBytes = async () => {
    const text = await (await fetch(`${service.url}/metrics`)).text();
    return new Scrape(text).value("batchd_memory_held_bytes", { purpose: "requests" });
  };
  /** Asks for a page, and lets each wait for room end at once. */
  const listInTime = async (project: string) => {
    let isAnswered = false;
    const answer = list(project).finally(() => {
      isAnswered = true;
    });
    while (!isAnswered) {
      clock.advance(ROOM_WAIT_MS);
      await setImmediate();
    }
    return answer;
  };
  const { hostname, port } = new URL(service.url);
  const asking =
    "GET /v1/batches?limit=100 HTTP/1.1\r\nhost: a\r\nauthorization: Bearer key-hasty\r\n\r\n";
  // A server with clients that do not read would not end after a failure.
  using leaving = new DisposableStack();
  const askWithoutReading = () => {
    const client = connect(Number(port), hostname)
      .on("error", () => {})
      .pause();
    // The system takes the first page from the server, and none behind it.
    client.write(asking.repeat(4));
    leaving.defer(() => client.destroy());
  };
  for (let n = 0; n < 4; n++) askWithoutReading();

  // A project may hold two thirds of the half for requests. The clock ends the wait of pages behind, also where the system
  // takes more.
  await expect.poll(heldBytes).toBeGreaterThan(5 * MIB);
  let refused = await listInTime("hasty");
  await expect
    .poll(async () => {
      if (refused.status !== 429) askWithoutReading();
      refused = await listInTime("hasty");
      return refused.status;
    })
    .toBe(429);
  expect(refused.headers.get("retry-after")).toBe("5");
  expect(refused.text).toContain("The project holds as many answers in memory");
  expect((await list("patient")).status).toBe(200);

  leaving.dispose();
  await expect.poll(async () => (await list("hasty")).status).toBe(200);
  await expect.poll(heldBytes).toBe(0);
});
