/** The memory of uploads that are unpacked: 400 bytes of zstd may unpack to megabytes, which it keeps to unpack the rest. */
import { buffer } from "node:stream/consumers";
import { constants, createZstdCompress } from "node:zlib";
import { expect, test } from "vitest";
import { FakeClock } from "../support/fake-clock.ts";
import { Scrape } from "../support/prometheus.ts";
import { BOUNDARY, RawConnection } from "../support/raw-http.ts";
import { startTestService, type TestService } from "../support/service.ts";

const MIB = 1024 * 1024;
const WINDOW_LOG = 23;
const WINDOW_BYTES = 2 ** WINDOW_LOG;
/** The server waits so long for room. */
const ROOM_WAIT_MS = 10_000;
async function packedBytes(): Promise<Buffer> {
  const pack = createZstdCompress({ params: { [constants.ZSTD_c_windowLog]: WINDOW_LOG } });
  const packed = buffer(pack);
  for (let i = 0; i < 10; i++) pack.write(Buffer.alloc(MIB, i % 2 === 0 ? "\n" : " "));
  pack.end();
  return packed;
}

const disposition = (name: string) => `Content-Disposition: form-data; name="${name}"`;
const FORM = `--${BOUNDARY}\r\n${disposition("purpose")}\r\n\r\nbatch\r\n--${BOUNDARY}\r\n${disposition("file")}; filename="in.jsonl.zst"\r\n\r\n`;
const FORM_END = `\r\n--${BOUNDARY}--\r\n`;

/** Sends an upload whose last bytes never come; all of it if `isWhole`. */
async function begin(service: TestService, packed: Buffer, isWhole = false) {
  const connection = await RawConnection.open(service.url);
  const body = Buffer.concat([Buffer.from(FORM), packed, Buffer.from(FORM_END)]);
  connection.send(
    `POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=${BOUNDARY}\r\nContent-Length: ${body.length}\r\n\r\n`,
  );
  connection.socket.write(isWhole ? body : body.subarray(0, FORM.length + packed.length - 12));
  return connection;
}

test("uploads that unpack count what this holds: those beyond limits.memory_bytes are asked to come back", async () => {
  const clock = new FakeClock();
  const limits = { memory_bytes: 2 * WINDOW_BYTES };
  await using service = await startTestService({ clock, config: { limits } });
  const heldBytes = async () => {
    const text = await (await fetch(`${service.url}/metrics`)).text();
    return new Scrape(text).value("batchd_memory_held_bytes", { purpose: "requests" });
  };
  const packed = await packedBytes();
  expect(packed.length).toBeLessThan(1_000);

  using _first = await begin(service, packed);
  await expect.poll(heldBytes).toBe(WINDOW_BYTES);

  using second = await begin(service, packed, true);
  const refused = second.answer();
  await expect
    .poll(async () => {
      clock.advance(ROOM_WAIT_MS);
      return second.socket.bytesRead > 0;
    })
    .toBe(true);
  expect(await refused).toMatchObject({ status: 503, headers: { "retry-after": "5" } });
});
