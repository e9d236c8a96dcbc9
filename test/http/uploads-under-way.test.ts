/** Uploads that are still coming, in a project with `stored_bytes`: on one server with SQLite and on two with PostgreSQL. */
import { once } from "node:events";
import { statSync } from "node:fs";
import { type ClientRequest, type IncomingMessage, request } from "node:http";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { pathsBelow } from "../support/files-below.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { sharePostgres } from "../support/postgres.ts";
import { ask, configWith, post, startProjectServers } from "../support/projects.ts";

const MIB = 1024 * 1024;
const BOUNDARY = "boundary";

const postgres = forAllTests(await sharePostgres("uploads under way"));

/** A form of which the end never comes, unless the test sends it. */
class HeldForm implements Disposable {
  readonly #request: ClientRequest;
  /** The answer, which may come before the end of the form. */
  readonly answer: Promise<{ readonly status: number | undefined; readonly text: string }>;

  constructor(url: string, field: "file" | "data") {
    this.#request = request(url, {
      method: "POST",
      // A connection of its own: the server closes the connection of a form which it refuses.
      agent: false,
      headers: {
        authorization: "Bearer key-a",
        "content-type": `multipart/form-data; boundary=${BOUNDARY}`,
        expect: "100-continue",
      },
    });
    // The server may close the connection of a form that it has refused.
    this.#request.on("error", () => {});
    this.answer = once(this.#request, "response").then(async ([response]) => {
      const { statusCode: status } = response as IncomingMessage;
      const pieces = await (response as IncomingMessage).setEncoding("utf8").toArray();
      return { status, text: pieces.join("") };
    });
    const purpose = `--${BOUNDARY}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n`;
    const head = `--${BOUNDARY}\r\ncontent-disposition: form-data; name="${field}"; filename="a"\r\n\r\n`;
    this.#request.write(field === "file" ? purpose + head : head);
  }

  /** Resolves when the server has read most of it: no more than a connection holds is on its way. */
  async send(bytes: number): Promise<void> {
    const isTaken = this.#request.write(Buffer.alloc(bytes, "a"));
    if (!isTaken) await Promise.race([once(this.#request, "drain"), this.answer]);
  }

  end(): void {
    this.#request.end(`\r\n--${BOUNDARY}--\r\n`);
  }

  [Symbol.dispose](): void {
    this.#request.destroy();
  }
}

/** The bytes of the blobs, those that are still coming among them. */
const bytesBelow = (dataDir: string): number =>
  pathsBelow(join(dataDir, "blobs"))
    .map((path) => statSync(join(dataDir, "blobs", path), { throwIfNoEntry: false })?.size ?? 0)
    .reduce((sum, size) => sum + size, 0);

const REFUSED = {
  status: 429,
  text: expect.stringContaining("the quota stored_bytes of the project search. Limit: 3,145,728."),
};

describe.each([
  ["one server with SQLite", null, true],
  ["two servers with PostgreSQL", postgres, postgres !== null],
] as const)("on %s", (_, database, canRun) => {
  const start = () =>
    startProjectServers(database, configWith({ quotas: { stored_bytes: 3 * MIB } }));

  test.skipIf(!canRun)("a file beyond the quota is refused before it has all come", async () => {
    await using servers = await start();
    const [url = ""] = servers.urls;
    using form = new HeldForm(`${url}/v1/files`, "file");
    await form.send(8 * MIB);
    expect(await form.answer).toEqual(REFUSED);
  });

  test.skipIf(!canRun)("a part beyond the quota is refused before it has all come", async () => {
    await using servers = await start();
    const [url = ""] = servers.urls;
    const upload = { filename: "a", purpose: "user_data", bytes: 8 * MIB, mime_type: "text/plain" };
    const { id } = (await post(url, "uploads", upload)).body;
    using form = new HeldForm(`${url}/v1/uploads/${id}/parts`, "data");
    await form.send(8 * MIB);
    expect(await form.answer).toEqual(REFUSED);
  });

  test.skipIf(!canRun)(
    "files that come at once have no more bytes together than the quota, and the one that fits is stored",
    async () => {
      await using servers = await start();
      const [url = ""] = servers.urls;
      using first = new HeldForm(`${url}/v1/files`, "file");
      // It stays below the 2 MiB at which it would be looked at again, so the other one is what goes too far.
      await first.send(1.9 * MIB);
      await expect
        .poll(() => bytesBelow(String(servers.places["data_dir"])))
        .toBeGreaterThan(0.9 * MIB);
      using second = new HeldForm(`${url}/v1/files`, "file");
      await second.send(4.5 * MIB);
      expect(await second.answer).toEqual(REFUSED);
      await first.send(MIB / 2);
      first.end();
      expect((await first.answer).status).toBe(200);
      const [file] = (await ask(url, "files")).body.data ?? [];
      await ask(url, `files/${file?.id}`, { method: "DELETE" });
      // Nothing of those that have ended counts any more.
      using third = new HeldForm(`${url}/v1/files`, "file");
      await third.send(2.5 * MIB);
      third.end();
      expect((await third.answer).status).toBe(200);
    },
  );
});
