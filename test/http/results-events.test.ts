/** Server-sent events follow the lines of a batch in the order of the input, each once, and end with the batch. */
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import type { IncomingMessage } from "node:http";
import { expect, test } from "vitest";
import { RawConnection } from "../support/raw-http.ts";
import { chatLine, startTestService, type TestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const STARTS = "http.server.request.start";

interface Event {
  readonly id: number | null;
  readonly name: string;
  readonly data: { readonly custom_id: string; readonly status: string };
}

/** Opens a stream. `next` resolves to the next event, and to null at the end. */
async function follow(service: TestService, path: string, headers: Record<string, string> = {}) {
  const abort = new AbortController();
  const response = await fetch(`${service.url}/v1/batches/${path}`, {
    headers: { accept: "text/event-stream", ...headers },
    signal: abort.signal,
  });
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  const next = async (): Promise<Event | null> => {
    for (;;) {
      const end = text.indexOf("\n\n");
      if (end === -1) {
        const { done, value } = await reader.read();
        if (done) return null;
        text += value;
        continue;
      }
      const fields = new Map(
        text
          .slice(0, end)
          .split("\n")
          .map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]),
      );
      text = text.slice(end + 2);
      const data = fields.get("data");
      if (data === undefined) continue;
      const id = fields.get("id");
      return {
        id: id === undefined ? null : Number(id),
        name: fields.get("event") ?? "message",
        data: JSON.parse(data),
      };
    }
  };
  const rest = async () => {
    const events: Event[] = [];
    for (let event = await next(); event !== null; event = await next()) events.push(event);
    return events;
  };
  return { response, next, rest, close: () => abort.abort() };
}

const limited = (url: string) => ({
  upstreams: [{ name: "one", base_url: url, models: ["*"], max_concurrency: 8 }],
  // The lines that hang have no answer that is worth a wait.
  engine: { stop_grace_seconds: 0, drain_grace_seconds: 0 },
});

test("a follower sees each line once, in order, also when it connects again, and the end of the batch", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ config: limited(upstream.url) });
  const count = 60;
  const isBad = (n: number) => n % 9 === 0;
  const contentOf = (n: number) => (isBad(n) ? "[[status 400]]" : `[[delay ${(n * 37) % 50}]]`);
  const numbers = Array.from({ length: count }, (_, i) => i + 1);
  upstream.hold();
  const { id } = await service.submit(numbers.map((n) => chatLine(`line-${n}`, contentOf(n))));
  await upstream.reached(1);
  const first = await follow(service, `${id}/output`);
  const errors = await follow(service, `${id}/errors`);
  expect(first.response.headers.get("content-type")).toBe("text/event-stream");
  upstream.release();
  const seen = [await first.next(), await first.next(), await first.next()];
  first.close();
  const again = await follow(service, `${id}/output`, { "last-event-id": `${seen.at(-1)?.id}` });
  const all = [...seen, ...(await again.rest())];
  const good = numbers.filter((n) => !isBad(n));
  expect(all.slice(0, -1).map((event) => [event?.id, event?.data.custom_id])).toEqual(
    good.map((n) => [n, `line-${n}`]),
  );
  expect(all.at(-1)).toMatchObject({ name: "end", data: { id, status: "completed" } });
  const failed = await errors.rest();
  expect(failed.slice(0, -1).map((event) => event.id)).toEqual(numbers.filter(isBad));
  const late = await (await follow(service, `${id}/output?after_line=50&limit=3`)).rest();
  expect(late.map((event) => event.id)).toEqual([51, 52, 53]);
});

test("a line waits for those before it, the end of the server ends the stream, and a deleted batch too", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ config: limited(upstream.url) });
  const lines = [chatLine("a", "Yes"), chatLine("b", "[[hang]]"), chatLine("c", "Yes")];
  const { id } = await service.submit(lines);
  const stream = await follow(service, `${id}/output`);
  expect((await stream.next())?.data.custom_id).toBe("a");
  const read = `${service.url}/v1/batches/${id}/output?wait=30&after_line=1`;
  expect(await (await fetch(read)).text()).toContain('"custom_id":"c"');
  await fetch(`${service.url}/v1/batches/${id}`, { method: "DELETE" });
  expect(await stream.rest()).toMatchObject([{ name: "end", data: { status: "deleted" } }]);

  const other = await service.submit(lines);
  const open = await follow(service, `${other.id}/output`);
  await open.next();
  const closed = service.close();
  expect(await open.rest()).toEqual([]);
  await closed;
});

test("a client that leaves while it waits for a first line is no broken download", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ config: limited(upstream.url) });
  const { id } = await service.submit([chatLine("a", "[[hang]]")]);
  await upstream.reached(1);
  const path = `/v1/batches/${id}/output`;
  using client = await RawConnection.open(service.url);
  const begun = new Promise<void>((resolve) => {
    subscribe(STARTS, function onStart(message) {
      const { request } = message as { readonly request: IncomingMessage };
      if (request.url?.startsWith(path) !== true) return;
      unsubscribe(STARTS, onStart);
      resolve();
    });
  });
  client.send(`GET ${path}?wait=60 HTTP/1.1\r\nHost: x\r\n\r\n`);
  await begun;
  client.socket.destroy();
  await service.events.reached("request.completed", { path });
  expect(service.events.count("download.broken")).toBe(0);
});

test("a project has a share of the places, more is no failure of the server, and a bad id is refused", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ config: limited(upstream.url) });
  const { id } = await service.submit([chatLine("a", "[[hang]]")]);
  const streams = await Promise.all(
    Array.from({ length: 8 }, () => follow(service, `${id}/output`)),
  );
  expect(streams.map(({ response }) => response.status)).toEqual(Array(8).fill(200));
  expect((await follow(service, `${id}/output`)).response.status).toBe(429);
  expect(service.events.all.filter(({ level }) => level === "error")).toEqual([]);
  for (const stream of streams) stream.close();
  await expect
    .poll(async () => {
      const stream = await follow(service, `${id}/output`);
      stream.close();
      return stream.response.status;
    })
    .toBe(200);
  for (const bad of ["x", "-1", "99999999999"]) {
    const refused = await follow(service, `${id}/output`, { "last-event-id": bad });
    expect(refused.response.status).toBe(400);
  }
});

test("an ended batch whose result file was deleted does not look like one without lines", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ config: limited(upstream.url) });
  const { id, output_file_id } = await service.run([
    chatLine("a", "Yes"),
    chatLine("b", "[[status 400]]"),
  ]);
  await service.openai.files.delete(output_file_id!);
  const ask = (path: string) => fetch(`${service.url}/v1/batches/${id}/${path}`);
  const refused = await ask("output");
  expect([refused.status, await refused.text()]).toEqual([
    409,
    expect.stringContaining("The result file of this batch was deleted."),
  ]);
  const events = await (await follow(service, `${id}/output`)).rest();
  expect(events).toMatchObject([{ name: "end", data: { id, status: "deleted" } }]);
  // What the other file says is still there.
  expect(await (await ask("errors")).text()).toContain('"custom_id":"b"');
  const { data } = (await (await ask("lines")).json()) as { data: { custom_id: string }[] };
  expect(data.map((line) => line.custom_id)).toEqual(["b"]);
});

test("readers of results and files leave Node no listeners to warn of", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ config: limited(upstream.url) });
  const { id, output_file_id } = await service.run([chatLine("a", "Yes")]);
  const warnings: Error[] = [];
  const note = (warning: Error) => {
    if (warning.name === "MaxListenersExceededWarning") warnings.push(warning);
  };
  process.on("warning", note);
  const paths = [
    `batches/${id}/output`,
    `batches/${id}/errors`,
    ...["jsonl", "csv"].map((format) => `files/${output_file_id}/content?format=${format}`),
  ];
  for (const path of paths) {
    const response = await fetch(`${service.url}/v1/${path}`);
    expect([response.status, (await response.text()) !== ""]).toEqual([
      200,
      !path.includes("errors"),
    ]);
  }
  await (await follow(service, `${id}/output`)).rest();
  process.off("warning", note);
  expect(warnings).toEqual([]);
});
