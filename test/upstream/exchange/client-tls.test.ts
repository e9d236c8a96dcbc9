import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:https";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { type Authority, privateAuthority } from "../../support/certificates.ts";
import { type ClientSettings, clientOf, exchangeOf, never, send } from "../../support/client.ts";
import { listening } from "../../support/listening.ts";

const body = Buffer.from('{"model":"m"}');
let authority: Authority;

beforeAll(async () => {
  authority = await privateAuthority();
});

/** A server with a certificate of the private authority for this address. */
async function startServer(ip = "127.0.0.1"): Promise<string> {
  const server = createServer(await authority.issue({ ip }), (_, response) => response.end("{}"));
  return `https://127.0.0.1:${await listening(server)}/v1`;
}

function fileWith(contents: string): string {
  const folder = mkdtempSync(join(tmpdir(), "batchd-ca-"));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const path = join(folder, "ca.pem");
  writeFileSync(path, contents);
  return path;
}

function open(url: string, settings: ClientSettings = {}) {
  const client = clientOf(url, settings);
  onTestFinished(() => client.close());
  return client;
}

describe("a server with a certificate of a private authority", () => {
  test("is not spoken to unless the authority is trusted", async () => {
    expect(await send(open(await startServer()), { body })).toEqual({
      kind: "unreachable",
      detail: expect.stringMatching(/^TLS failed|certificate/),
    });
  });

  test("answers when it is, to lines and to requests that pass through", async () => {
    const client = open(await startServer(), { ca_file: fileWith(authority.cert) });
    expect(await send(client, { body })).toMatchObject({ kind: "answered", status: 200 });
    const result = await client.proxy(exchangeOf(client, { body }), never);
    if (result.kind !== "proxied") throw new Error(result.kind);
    expect(await text(result.body)).toBe("{}");
  });

  test("may be one of several authorities in the file", async () => {
    const other = await privateAuthority();
    const ca_file = fileWith(`# ours\n${other.cert}\n${authority.cert}`);
    expect(await send(open(await startServer(), { ca_file }), { body })).toMatchObject({
      kind: "answered",
    });
  });

  test("still has to be the one that was asked for", async () => {
    const client = open(await startServer("10.0.0.1"), { ca_file: fileWith(authority.cert) });
    expect(await send(client, { body })).toMatchObject({
      kind: "unreachable",
      detail: "TLS failed (ERR_TLS_CERT_ALTNAME_INVALID)",
    });
  });

  test("is down, and nothing worse, when the file has gone", async () => {
    const client = open(await startServer(), { ca_file: "/nowhere/ca.pem" });
    expect(await send(client, { body })).toMatchObject({ kind: "unreachable" });
  });
});
