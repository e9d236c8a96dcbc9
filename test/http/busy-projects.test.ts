/** A project that asks for hundreds of things at once holds up no other one. */
import { expect, test } from "vitest";
import { submitLines } from "../support/batches.ts";
import { clientOf } from "../support/projects.ts";
import { RawConnection } from "../support/raw-http.ts";
import { chatLines, startTestService } from "../support/service.ts";

const BUSY = 300;

test("a request is answered before most of the hundreds that another project sent before it", async () => {
  const keys = ["busy", "other"].map((name) => ({ name, key: name, project: name }));
  await using service = await startTestService({ config: { auth: { keys } } });
  const requestOf = async (key: string) => {
    const { id } = await submitLines(clientOf(service.url, key), chatLines(1));
    return `GET /v1/batches/${id} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${key}\r\n\r\n`;
  };
  const [busy, other] = [await requestOf("busy"), await requestOf("other")];
  await using connections = new AsyncDisposableStack();
  const open = async () => connections.use(await RawConnection.open(service.url));
  const sent: [RawConnection, string][] = [];
  for (let n = 0; n < BUSY; n++) sent.push([await open(), busy]);
  sent.push([await open(), other]);
  const answered: string[] = [];
  const answers = sent.map(async ([connection, request]) => {
    expect((await connection.answer()).status).toBe(200);
    answered.push(request);
  });
  for (const [connection, request] of sent) connection.send(request);
  await Promise.all(answers);
  expect(answered.indexOf(other)).toBeLessThan(BUSY / 2);
});
