/** The credentials and the servers of clients do no harm where they could: traces, copies, names that change, other databases. */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import Database from "better-sqlite3";
import { expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { Locations } from "../../src/locations/locations.ts";
import { AddressGuard } from "../../src/resources/address-guard.ts";
import type { Resolve } from "../../src/resources/name-lookup.ts";
import { bytesBelow } from "../support/files-below.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { moveWell } from "../support/move.ts";
import { startOtlpReceiver } from "../support/otlp-receiver.ts";
import { aCall, aParcel } from "../support/parcels.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import { hasS3Server, S3_KEYS, startS3Server } from "../support/s3-server.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const CANARY = "canary-0b5e1f-that-nothing-may-show";

const postgres = forAllTests(await sharePostgres("credentials of deliveries"));

const bucketAt = (endpoint: string) => ({
  kind: "s3",
  bucket: "results",
  region: "us-east-1",
  endpoint,
  access_key_id: "id",
  secret_access_key: CANARY,
  session_token: `token-${CANARY}`,
});

test("credentials of a delivery that waits are in no trace, no audit log and no copy of the installation", async () => {
  using folder = temporaryFolder("batchd-canary-");
  await using upstream = await startUpstream();
  await using receiver = await startOtlpReceiver();
  const [dataDir, copy, audit] = ["data", "copy", "audit.jsonl"].map((name) =>
    join(folder.path, name),
  ) as [string, string, string];
  const deliveries = { allow_private_hosts: ["127.0.0.1"], credentials_key: "k".repeat(32) };
  const service = await startTestService({
    upstreamUrl: upstream.url,
    dataDir,
    config: { audit: { file: audit }, tracing: { endpoint: receiver.endpoint }, deliveries },
  });
  const { id } = await service.run(chatLines(1));
  const path = `/batches/${id}/deliveries`;
  const { text } = await service.post(path, bucketAt("http://127.0.0.1:9"));
  const made = (JSON.parse(text) as { id: string }).id;
  await service.events.reached("delivery.attempt_failed", { delivery: made });
  await service.close();
  const [source, target] = ["source.yaml", "target.yaml"].map((name) =>
    join(folder.path, name),
  ) as [string, string];
  writeFileSync(source, JSON.stringify({ data_dir: dataDir, deliveries }));
  writeFileSync(target, JSON.stringify({ data_dir: copy, deliveries }));
  const said = await moveWell(["--config", source, "--to-config", target]);
  const db = new Database(join(copy, "batchd.sqlite"), { readonly: true });
  const row = db.prepare("select credentials from batch_deliveries where id = ?").get(made);
  db.close();
  expect(row).toMatchObject({ credentials: expect.stringMatching(/^v1\./) });
  expect(receiver.spans.length).toBeGreaterThan(0);
  const audited = readFileSync(audit, "utf8");
  expect(audited).toContain("delivery.create");
  const places = [text, said, audited, JSON.stringify([receiver.spans, service.events.all])];
  for (const each of [CANARY, Buffer.from(CANARY).toString("base64").slice(0, 30)]) {
    for (const place of places) expect(place).not.toContain(each);
    expect(bytesBelow(folder.path).includes(each)).toBe(false);
  }
});

test.runIf(postgres !== null)(
  "a server on PostgreSQL takes credentials of clients when it has a key for them, and not before",
  async () => {
    await using upstream = await startUpstream();
    const database_url = await postgres!.createDatabase();
    const open = { allow_private_hosts: ["127.0.0.1"] };
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      config: { database_url, deliveries: open },
    });
    const { id } = await service.run(chatLines(1));
    const path = `/batches/${id}/deliveries`;
    const refused = await service.post(path, bucketAt("http://127.0.0.1:9"));
    expect(refused.status).toBe(400);
    expect(refused.text).toContain("deliveries.credentials_key");
    expect(refused.text).not.toContain(CANARY);
    const deliveries = { ...open, credentials_key: "k".repeat(32) };
    service.reconfigure({ database_url, deliveries });
    const taken = await service.post(path, bucketAt("http://127.0.0.1:9"));
    expect(taken.status, taken.text).toBe(200);
  },
);

/** What one server may have otherwise than the others, and what it then says of a delivery. */
const OTHERWISE = [
  [{ client_buckets: false }, "unavailable"],
  [{ credentials_key: undefined }, "unavailable"],
  [{ credentials_key: "x".repeat(32) }, "credentials_lost"],
  [{ allow_private_hosts: [] }, "unavailable"],
] as const;

test.runIf(postgres !== null && hasS3Server())(
  "a server of a fleet with other settings ends no delivery that another server can make",
  async () => {
    await using upstream = await startUpstream();
    await using s3 = await startS3Server();
    const database_url = await postgres!.createDatabase();
    const deliveries = { allow_private_hosts: ["127.0.0.1"], credentials_key: "k".repeat(32) };
    const upstreams = [{ name: "test", models: ["*"], base_url: upstream.url }];
    const place = { database_url, storage: s3.storage(), upstreams };
    const start = (role: "all" | "api" | "worker", more: object = {}) =>
      startTestService({ role, config: { ...place, deliveries: { ...deliveries, ...more } } });
    const first = await start("all");
    const { id: batch } = await first.run(chatLines(2));
    await first.close();
    await using api = await start("api");
    const { session_token: _none, ...bucket } = { ...bucketAt(s3.url), ...S3_KEYS };
    const asked = { ...bucket, bucket: "tests", prefix: "mine/" };
    const made = await api.post(`/batches/${batch}/deliveries`, asked);
    expect(made.status, made.text).toBe(200);
    const makeDue = () => query(database_url, "update batch_deliveries set next_attempt_at_ms = 0");
    const endAt = async (otherwise: object) => {
      await using other = await start("worker", otherwise);
      await Promise.race(ENDS.map((event) => other.events.reached(event, { batch })));
      return other.events.all.find(({ event }) => ENDS.includes(event));
    };
    for (const [otherwise, code] of OTHERWISE) {
      expect(await endAt(otherwise)).toMatchObject({ event: "delivery.attempt_failed", code });
      // The server is closed: another try of its own would make the next server wait longer.
      await makeDue();
    }
    await using worker = await start("worker");
    await worker.events.reached("delivery.delivered", { batch });
    expect(existsSync(join(s3.bucketFolder, "mine", batch, "run.json"))).toBe(true);
  },
);

const ENDS = ["delivery.attempt_failed", "delivery.given_up"];

// Other systems than Linux have one address of their own.
test.runIf(process.platform === "linux")(
  "a name that leads to another address than before is refused there",
  async () => {
    const asked = { outside: 0, inside: 0 };
    const serve = (place: "outside" | "inside") =>
      createServer((request, response) => {
        asked[place]++;
        request.resume();
        response.writeHead(404, { connection: "close" }).end();
      });
    // The one address is open, in the place of a public one, and the other is the private one that it is.
    const outside = serve("outside").listen(0, "127.0.0.2");
    await new Promise((resolve) => outside.once("listening", resolve));
    const { port } = outside.address() as { port: number };
    const inside = serve("inside").listen(port, "127.0.0.1");
    await new Promise((resolve) => inside.once("listening", resolve));
    const addresses = ["127.0.0.2"];
    const resolve: Resolve = (_host, _options, callback) =>
      callback(null, [{ address: addresses.shift() ?? "127.0.0.1", family: 4 }]);
    const guard = new AddressGuard(["127.0.0.2"], { setting: "allow_private_hosts", resolve });
    const locations = new Locations([], {
      clock: systemClock,
      workFolder: "/nonexistent",
      environment: {},
    });
    const bucket = {
      bucket: "b",
      prefix: "",
      region: "us-east-1",
      forcePathStyle: true,
      endpoint: `http://moving.example:${port}`,
      accessKeyId: "id",
      secretAccessKey: CANARY,
      sessionToken: null,
    };
    const delivering = locations.ofClient(bucket, guard).deliver(aParcel(), aCall());
    const error = await delivering.then(
      () => null,
      (reason: Error) => reason,
    );
    expect(error).toMatchObject({
      name: "LocationError",
      message: expect.stringContaining("not at a public address"),
    });
    expect(error?.message).not.toContain("127.0.0.1");
    expect(asked).toEqual({ outside: 1, inside: 0 });
    for (const server of [outside, inside]) server.close();
  },
);
