import { randomBytes } from "node:crypto";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { LookupFunction } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buffer } from "node:stream/consumers";
import { afterAll, expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { Locations } from "../../src/locations/locations.ts";
import { listening } from "../support/listening.ts";
import { aCall, aParcel, pathOf } from "../support/parcels.ts";
import { configWith } from "../support/yaml-config.ts";

const DEPS = { clock: systemClock, workFolder: tmpdir(), environment: {} };

const lookup: LookupFunction = (_, options, callback) =>
  options.all === true
    ? callback(null, [{ address: "127.0.0.1", family: 4 }])
    : callback(null, "127.0.0.1", 4);

const roots: string[] = [];
function newRoot(): string {
  const root = mkdtempSync(join(tmpdir(), "batchd-locations-"));
  roots.push(root);
  return root;
}
afterAll(() => {
  for (const root of roots) rmSync(root, { recursive: true, force: true });
});

const configured = (locations: readonly object[]) => configWith({ locations }).locations;

const folder = (name: string, more: object = {}) => ({
  name,
  kind: "folder",
  path: newRoot(),
  access: "read-write",
  ...more,
});

test("a project finds the locations that are open to it, for what they are open to", () => {
  const locations = new Locations(
    configured([
      folder("in", { access: "read" }),
      folder("out", { access: "write" }),
      folder("both", { projects: ["search"] }),
    ]),
    DEPS,
  );
  const found = (project: string, name: string) =>
    (["read", "write"] as const).filter((access) => locations.find(project, name, access) !== null);
  expect(found("search", "in")).toEqual(["read"]);
  expect(found("search", "out")).toEqual(["write"]);
  expect(found("search", "both")).toEqual(["read", "write"]);
  expect(found("other", "both")).toEqual([]);
  expect(found("search", "none")).toEqual([]);
  expect(found("search", "__proto__")).toEqual([]);
});

test("a location reads and delivers with the settings in force, and is the same while they are", async () => {
  const before = folder("share");
  const locations = new Locations(configured([before, folder("other")]), DEPS);
  const former = locations.find("default", "share", "write");
  const after = { ...before, path: newRoot() };
  locations.reconfigure(configured([after]));
  expect(locations.find("default", "other", "write")).toBeNull();
  const current = locations.find("default", "share", "write");
  expect(current).not.toBe(former);
  locations.reconfigure(configured([after]));
  expect(locations.find("default", "share", "write")).toBe(current);
  const parcel = aParcel();
  await former?.deliver(parcel, aCall());
  await current?.deliver(parcel, aCall());
  expect(readdirSync(before.path)).toEqual([parcel.batchId]);
  expect(readdirSync(after.path)).toEqual([parcel.batchId]);
  writeFileSync(join(after.path, "in"), "lines");
  await using file = await current!.open(pathOf("in"), aCall());
  expect((await buffer(file.content)).toString()).toBe("lines");
});

test("a failure quotes the other side without a part of a secret, wherever its words are cut", async () => {
  let words = "";
  const echo = createServer((asked, answer) => {
    asked.resume();
    const isOxen = asked.url?.startsWith("/api/") ?? false;
    const xml = `<Error><Code>AccessDenied</Code><Message>${words}</Message></Error>`;
    if (asked.method === "HEAD") answer.writeHead(404).end();
    else answer.writeHead(403).end(isOxen ? JSON.stringify({ status_message: words }) : xml);
  });
  const endpoint = `http://127.0.0.1:${await listening(echo)}`;
  const [id, secret, token] = ["AKIA", "secret", "token"].map(
    // Session tokens of AWS are as long.
    (name) => `${name}${randomBytes(name === "token" ? 400 : 20).toString("hex")}`,
  ) as [string, string, string];
  const bucket = { bucket: "b", prefix: "", region: "us-east-1", endpoint, forcePathStyle: true };
  const credentials = { accessKeyId: id, secretAccessKey: secret, sessionToken: token };
  const server = { access: "write", region: "us-east-1", endpoint, force_path_style: true };
  const locations = new Locations(
    configured([
      { name: "data", kind: "oxen", url: endpoint, repository: "n/r", access: "write", token },
      {
        ...server,
        name: "lake",
        kind: "s3",
        bucket: "b",
        session_token: token,
        access_key_id: id,
        secret_access_key: secret,
      },
    ]),
    DEPS,
  );
  const places = [
    locations.find("default", "data", "write")!,
    locations.find("default", "lake", "write")!,
    locations.ofClient({ ...bucket, ...credentials }, { refusalOf: () => null, lookup }),
  ];
  for (const [i, place] of places.entries()) {
    const secrets = [[token], [secret, token], [id, secret, token]][i]!;
    for (const hidden of secrets) {
      for (const padding of [0, 150, 1_100]) {
        words = `${"x".repeat(padding)} you sent ${hidden}`;
        const failure = await place.deliver(aParcel(), aCall()).catch((error: unknown) => error);
        expect(failure).toMatchObject({ name: "LocationError", failure: "forbidden" });
        const { message } = failure as Error;
        expect(message).toContain("you sent [");
        expect(message).not.toContain(hidden.slice(0, 8));
        expect(message.length).toBeLessThan(1_300);
      }
    }
  }
});

test("a failure has no credentials, also when a git server repeats them as they were sent", async () => {
  let sent = "";
  const echo = createServer((asked, answer) => {
    sent = asked.headers.authorization ?? "";
    answer.writeHead(403, { "content-type": "text/plain" }).end(`you sent ${sent}\n`);
  });
  const repository = `http://127.0.0.1:${await listening(echo)}/evals.git`;
  const user = { username: "batchd", password: "git-token-4711" };
  const entry = { name: "evals", kind: "git", repository, access: "write", ...user };
  const locations = new Locations(configured([entry]), DEPS);
  const place = locations.find("default", "evals", "write")!;
  const failure = await place.deliver(aParcel(), aCall()).catch((error: unknown) => error);
  expect((failure as Error).message).toContain("you sent Basic [redacted]");
  expect(sent).toBe(`Basic ${Buffer.from("batchd:git-token-4711").toString("base64")}`);
});
