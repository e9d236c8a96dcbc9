/** Deliveries to buckets of clients: a real S3 server, and no trace of the credentials anywhere. */
import { existsSync, readFileSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { connect, createServer as createNetServer, type Socket } from "node:net";
import { join } from "node:path";
import Database from "better-sqlite3";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { newDeliveryId } from "../../src/batch/delivery.ts";
import { systemClock } from "../../src/clock.ts";
import type { DeliveryObject } from "../../src/contract/delivery.ts";
import { CannotUnseal, keyOf, seal, unseal } from "../../src/deliveries/sealed-credentials.ts";
import { submitLines } from "../support/batches.ts";
import { bytesBelow } from "../support/files-below.ts";
import { listening } from "../support/listening.ts";
import { hasS3Server, S3_KEYS, type S3Server, startS3Server } from "../support/s3-server.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

const SECRET = S3_KEYS.secret_access_key;
const TOKEN = "a-session-token-that-nothing-may-show";

const bucketAt = (endpoint: string) => ({
  kind: "s3",
  bucket: "tests",
  prefix: "mine/",
  region: "us-east-1",
  endpoint,
  ...S3_KEYS,
});

/** Every byte below a folder. */
function assertNoSecret(service: TestService, ...texts: readonly string[]): void {
  const written = bytesBelow(service.dataDir);
  const log = JSON.stringify(service.events.all);
  for (const secret of [SECRET, TOKEN, Buffer.from(SECRET).toString("base64").slice(0, 16)]) {
    expect(written.includes(secret)).toBe(false);
    for (const text of [log, ...texts]) expect(text).not.toContain(secret);
  }
}

function sealedIn(service: TestService, id: string): string | null {
  const db = new Database(join(service.dataDir, "batchd.sqlite"), { readonly: true });
  try {
    const row = db.prepare("select credentials from batch_deliveries where id = ?").get(id);
    return (row as { credentials: string | null }).credentials;
  } finally {
    db.close();
  }
}

describe.skipIf(!hasS3Server())("with credentials of the client", () => {
  let s3: S3Server;
  let upstream: TestUpstream;
  let service: TestService;
  let batchId: string;

  beforeAll(async () => {
    s3 = await startS3Server();
    upstream = await startUpstream();
    service = await startTestService({
      upstreamUrl: upstream.url,
      config: { deliveries: { allow_private_hosts: ["127.0.0.1"] } },
    });
    batchId = (await service.run(chatLines(3))).id;
  });
  afterAll(async () => {
    await service[Symbol.asyncDispose]();
    await upstream[Symbol.asyncDispose]();
    await s3[Symbol.asyncDispose]();
  });

  test("results arrive in the bucket, and the credentials are gone once they have", async () => {
    const answer = await service.post(`/batches/${batchId}/deliveries`, bucketAt(s3.url));
    expect(answer.status, answer.text).toBe(200);
    const { id, s3: shown } = JSON.parse(answer.text) as DeliveryObject;
    expect(shown).toEqual({
      bucket: "tests",
      prefix: "mine/",
      region: "us-east-1",
      endpoint: s3.url,
    });
    await service.events.reached("delivery.delivered", { delivery: id });
    const { output_file_id } = await service.openai.batches.retrieve(batchId);
    const delivered = join(s3.bucketFolder, "mine", batchId);
    expect(readFileSync(join(delivered, "output.jsonl"), "utf8")).toBe(
      await service.text(output_file_id),
    );
    expect(existsSync(join(delivered, "run.json"))).toBe(true);
    expect(sealedIn(service, id)).toBeNull();
    assertNoSecret(service, answer.text);
  });

  test.each(["AWS_USE_DUALSTACK_ENDPOINT", "AWS_USE_FIPS_ENDPOINT"])(
    "a machine with %s, which chooses between the addresses of AWS, delivers to the address of the client",
    async (name) => {
      vi.stubEnv(name, "true");
      onTestFinished(() => void vi.unstubAllEnvs());
      const asked = { ...bucketAt(s3.url), prefix: name };
      const answer = await service.post(`/batches/${batchId}/deliveries`, asked);
      expect(answer.status, answer.text).toBe(200);
      const { id } = JSON.parse(answer.text) as DeliveryObject;
      const ends = ["delivery.delivered", "delivery.given_up"].map((event) =>
        service.events.reached(event, { delivery: id }).then(() => event),
      );
      expect(await Promise.race(ends)).toBe("delivery.delivered");
    },
  );

  test("the server of a bucket keeps no connection open behind its delivery, or behind a failed attempt", async () => {
    const open = new Set<Socket>();
    const proxy = createNetServer((client) => {
      open.add(client);
      const server = connect(Number(new URL(s3.url).port), "127.0.0.1");
      client.on("error", () => {}).on("close", () => open.delete(client));
      server.on("error", () => {});
      client.pipe(server).pipe(client);
    });
    const endpoint = `http://127.0.0.1:${await listening(proxy)}`;
    const path = `/batches/${batchId}/deliveries`;
    const made = [
      [{ ...bucketAt(endpoint), prefix: "closed/" }, "delivery.delivered"],
      [{ ...bucketAt(endpoint), bucket: "no-such-bucket" }, "delivery.given_up"],
    ] as const;
    for (const [asked, end] of made) {
      const { id } = JSON.parse((await service.post(path, asked)).text) as { id: string };
      await service.events.reached(end, { delivery: id });
      await expect.poll(() => open.size).toBe(0);
    }
  });

  test("while they wait, nothing that is written, logged or answered has them in clear", async () => {
    const down = { ...bucketAt("http://127.0.0.1:9"), bucket: "waiting", session_token: TOKEN };
    const input_file_id = await service.upload(chatLines(1));
    const asked = {
      input_file_id,
      endpoint: "/v1/chat/completions",
      x_batchd: { deliver: [down] },
    };
    const created = await service.post("/batches", asked);
    expect(created.status, created.text).toBe(200);
    const { id: batch } = JSON.parse(created.text) as { id: string };
    await service.events.reached("delivery.attempt_failed", { batch });
    const path = `/batches/${batch}/deliveries`;
    const list = await (await fetch(`${service.url}/v1${path}`)).text();
    const [waiting] = (JSON.parse(list) as { data: DeliveryObject[] }).data;
    expect(waiting).toMatchObject({ status: "pending", error: { code: "unavailable" } });
    expect(sealedIn(service, waiting!.id)).toMatch(/^v1\./);
    const metrics = await (await fetch(`${service.url}/metrics`)).text();
    const again = await service.post(path, down);
    expect(again.status).toBe(409);
    assertNoSecret(service, created.text, list, metrics, again.text);
    const key = join(service.dataDir, "batchd.credentials-key");
    expect(statSync(key).mode & 0o777).toBe(0o600);

    const cancelled = await service.post(`${path}/${waiting!.id}/cancel`, {});
    expect(cancelled.status).toBe(200);
    expect(sealedIn(service, waiting!.id)).toBeNull();
    assertNoSecret(service, cancelled.text);
  });

  test("a refusal of the bucket ends the delivery without a word of the credentials", async () => {
    const wrong = { ...bucketAt(s3.url), secret_access_key: `${SECRET}x` };
    const answer = await service.post(`/batches/${batchId}/deliveries`, wrong);
    const { id } = JSON.parse(answer.text) as DeliveryObject;
    // The operator cannot help it.
    await service.events.reached("delivery.given_up", { delivery: id, level: "warn" });
    expect(sealedIn(service, id)).toBeNull();
    const shown = await fetch(`${service.url}/v1/batches/${batchId}/deliveries/${id}`);
    const text = await shown.text();
    expect(JSON.parse(text)).toMatchObject({ status: "failed", error: { code: "forbidden" } });
    assertNoSecret(service, text);
  });
});

test("buckets of some projects that never answer leave room for those of others, and for the locations of the operator", async () => {
  using folder = temporaryFolder("batchd-share-");
  await using upstream = await startUpstream();
  const silent = createServer(() => {});
  const endpoint = `http://127.0.0.1:${await listening(silent)}`;
  const projects = ["first", "second", "third", "fourth", "fifth"];
  const keys = projects.map((project) => ({ name: project, key: project, project }));
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: {
      deliveries: { allow_private_hosts: ["127.0.0.1"] },
      auth: { keys },
      engine: { drain_grace_seconds: 0 },
      locations: [{ name: "share", kind: "folder", path: folder.path, access: "write" }],
    },
  });
  const finished = async (apiKey: string) => {
    const openai = service.openai.withOptions({ apiKey });
    const { id } = await submitLines(openai, chatLines(1));
    await service.events.reached("batch.completed", { batch: id });
    return (body: object) => openai.post(`/batches/${id}/deliveries`, { body });
  };
  const started = (project: string) => service.events.count("delivery.started", { project });
  // What the first ones ask for is due long before.
  for (const [project, most] of [["first", 4] as const, ["second", 2] as const]) {
    const deliver = await finished(project);
    for (let n = 0; n < 9; n++) await deliver({ ...bucketAt(endpoint), bucket: `${project}-${n}` });
    await service.events.reached("delivery.started", { project, count: most });
  }
  for (const project of ["third", "fourth", "fifth"]) {
    const deliver = await finished(project);
    for (const bucket of ["one", "two"]) await deliver({ ...bucketAt(endpoint), bucket });
    if (project !== "fifth") await service.events.reached("delivery.started", { project });
    else await deliver({ location: "share" });
  }
  await service.events.reached("delivery.delivered", { location: "share" });
  // No place was made by an attempt that had to end.
  expect(service.events.count("delivery.attempt_failed", {})).toBe(0);
  expect(projects.map(started)).toEqual([4, 2, 1, 1, 1]);
  expect(service.events.count("delivery.started", { location: "client_bucket" })).toBe(8);
  silent.closeAllConnections();
});

test("a cancelled delivery that its bucket still keeps counts against its project until it has ended there", async () => {
  await using upstream = await startUpstream();
  const kept: (() => void)[] = [];
  let keeps = true;
  const bucket = createServer((request, response) => {
    request.resume();
    const answer = () => response.writeHead(404).end();
    if (keeps && request.method === "PUT") kept.push(answer);
    else answer();
  });
  const endpoint = `http://127.0.0.1:${await listening(bucket)}`;
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: {
      deliveries: { allow_private_hosts: ["127.0.0.1"] },
      auth: { keys: ["first", "second"].map((name) => ({ name, key: name, project: name })) },
    },
    // What an adapter gets to stop is over at once.
    clock: { ...systemClock, after: (ms, fn) => systemClock.after(ms === 5_000 ? 0 : ms, fn) },
  });
  const client = async (apiKey: string) => {
    const openai = service.openai.withOptions({ apiKey });
    const { id } = await submitLines(openai, chatLines(1));
    await service.events.reached("batch.completed", { batch: id });
    const path = `/batches/${id}/deliveries`;
    return {
      deliver: (name: string) =>
        openai.post<DeliveryObject>(path, { body: { ...bucketAt(endpoint), bucket: name } }),
      cancel: ({ id }: DeliveryObject) => openai.post(`${path}/${id}/cancel`),
    };
  };
  const first = await client("first");
  const second = await client("second");
  const made = await Promise.all(["one", "two", "three", "four"].map(first.deliver));
  await expect.poll(() => kept.length).toBe(4);
  for (const delivery of made) await first.cancel(delivery);
  for (const { id } of made) await service.events.reached("delivery.cancelled", { delivery: id });

  const next = await first.deliver("five");
  // The projects take turns, so the delivery of the first one would begin before the last one of these.
  for (const name of ["one", "two"]) await second.deliver(name);
  await service.events.reached("delivery.started", { project: "second", count: 2 });
  expect(service.events.count("delivery.started", { delivery: next.id })).toBe(0);

  keeps = false;
  for (const answer of kept) answer();
  await service.events.reached("delivery.started", { delivery: next.id });
});

test("a server of a client cannot lead batchd elsewhere by a redirect", async () => {
  await using upstream = await startUpstream();
  const asked: string[] = [];
  const inside = createServer((request, response) => {
    asked.push(request.url ?? "");
    request.resume();
    response.end();
  });
  const location = `http://127.0.0.1:${await listening(inside)}/inside`;
  const redirecting = createServer((request, response) => {
    request.resume();
    response.writeHead(307, { location, "x-amz-bucket-region": "eu-west-1" }).end();
  });
  const endpoint = `http://localhost:${await listening(redirecting)}`;
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { deliveries: { allow_private_hosts: ["localhost"] } },
  });
  const { id } = await service.run(chatLines(1));
  const { text } = await service.post(`/batches/${id}/deliveries`, bucketAt(endpoint));
  const made = JSON.parse(text) as DeliveryObject;
  const end = await Promise.race(
    ["delivery.given_up", "delivery.attempt_failed"].map((event) =>
      service.events.reached(event, { delivery: made.id }).then(() => event),
    ),
  );
  expect(end).toBe("delivery.given_up");
  expect(asked).toEqual([]);
  assertNoSecret(service);
});

test("a bucket at a private address is refused, as an address at once and as a name when it is connected to", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const { id } = await service.run(chatLines(1));
  const path = `/batches/${id}/deliveries`;
  for (const host of [
    "127.0.0.1:9000",
    "10.0.0.1",
    "[::1]:9000",
    "169.254.169.254",
    "168.63.129.16",
    "2130706433",
  ]) {
    const { status, text } = await service.post(path, bucketAt(`http://${host}`));
    expect([status, JSON.parse(text)], host).toMatchObject([400, { error: { param: "endpoint" } }]);
    expect(text).not.toContain(SECRET);
  }
  const named = await service.post(
    path,
    bucketAt(new URL(upstream.url).origin.replace("127.0.0.1", "localhost")),
  );
  const made = JSON.parse(named.text) as DeliveryObject;
  const seenBefore = upstream.seen?.length;
  await Promise.race([
    service.events.reached("delivery.given_up", { delivery: made.id }),
    service.events.reached("delivery.attempt_failed", { delivery: made.id }),
  ]);
  expect(upstream.seen?.length).toBe(seenBefore);
});

test("a batch has one delivery to a bucket, however its address is spelled, and no host is longer than a name can be", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { deliveries: { allow_private_hosts: ["127.0.0.1"] } },
  });
  const { id } = await service.run(chatLines(1));
  const deliver = (address: string) => service.post(`/batches/${id}/deliveries`, bucketAt(address));
  const made = await deliver("http://127.0.0.1:9");
  expect(made.status, made.text).toBe(200);
  for (const spelling of ["HTTP://127.0.0.1:9/", "http://127.1:9", "http://127.0.0\n.1:9"]) {
    expect((await deliver(spelling)).status, spelling).toBe(409);
  }
  const long = await deliver(`http://${"界".repeat(900)}.example`);
  expect([long.status, JSON.parse(long.text)]).toMatchObject([
    400,
    { error: { param: "endpoint", message: expect.stringContaining("more than 253 characters") } },
  ]);
});

test("credentials that cannot be sent are refused at once, without being repeated", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const { id } = await service.run(chatLines(1));
  const usual = { ...bucketAt("https://bucket.example"), session_token: TOKEN };
  for (const field of ["access_key_id", "session_token"] as const) {
    const bucket = { ...usual, [field]: `${SECRET}\n` };
    const { status, text } = await service.post(`/batches/${id}/deliveries`, bucket);
    expect([status, JSON.parse(text)]).toMatchObject([400, { error: { param: field } }]);
    assertNoSecret(service, text);
  }
});

test("buckets of clients can be turned off, and need a key that all servers have", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { deliveries: { client_buckets: false } },
  });
  const { id } = await service.run(chatLines(1));
  const refused = await service.post(`/batches/${id}/deliveries`, bucketAt("http://s3.example"));
  expect(refused.status).toBe(400);
  expect(refused.text).toContain("deliveries.client_buckets");
});

test("sealed credentials open with their key and for their delivery alone", () => {
  const credentials = { accessKeyId: "a", secretAccessKey: SECRET, sessionToken: null };
  const [id, other] = [newDeliveryId(), newDeliveryId()];
  const key = keyOf("k".repeat(32));
  const sealed = seal(id, credentials, key);
  expect(sealed).not.toContain(SECRET);
  expect(seal(id, credentials, key)).not.toBe(sealed);
  expect(unseal(id, sealed, key)).toEqual(credentials);
  expect(() => unseal(other, sealed, key)).toThrow(CannotUnseal);
  expect(() => unseal(id, sealed, keyOf("l".repeat(32)))).toThrow(CannotUnseal);
  expect(() => unseal(id, `${sealed.slice(0, -2)}AA`, key)).toThrow(CannotUnseal);
});
