/** What the operator configured as a secret never reaches a tenant or the log, also when a server echoes it. */
import { randomInt } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { upstreamSecrets } from "../src/config/secrets.ts";
import { UpstreamEntry } from "../src/config/upstreams.ts";
import { Redactor } from "../src/redactor.ts";
import { answerWith, type Given } from "./support/given.ts";
import { listening } from "./support/listening.ts";
import { BatchdProcess } from "./support/process.ts";
import { chatLine, startTestService } from "./support/service.ts";
import { type SeenRequest, startUpstream } from "./support/upstream.ts";

const SECRETS = {
  key: 'sk-operator/0123"456789+abc=',
  header: "gateway-t0ken-abcdef",
  extra: "tenant-secret-4711-xyz",
  password: "proxy-pässword-1",
};
const upstreamOf = (url: string) => ({
  name: "one",
  base_url: url,
  api_key: SECRETS.key,
  models: ["*"],
  headers: { "x-gateway-token": SECRETS.header, "x-team": "research", accept: "application/json" },
  extra_body: { provider: { api_key: SECRETS.extra } },
});
const serviceFor = (url: string) => startTestService({ config: { upstreams: [upstreamOf(url)] } });

/** A server that shows everything that it was sent. */
const echo =
  (status: number) =>
  ({ headers, body }: SeenRequest): Given => ({
    status,
    headers: {
      "x-request-id": `req-${SECRETS.header}`,
      "x-ratelimit-note": SECRETS.header,
      "content-type": "application/json",
    },
    body: JSON.stringify({
      error: {
        message: `You sent ${headers.authorization}, ${headers["x-gateway-token"]} and ${body}`,
        url: `/?key=${encodeURIComponent(SECRETS.key)}`,
      },
      usage: "BIG",
    }).replace('"BIG"', '{"total_tokens":9007199254740993}'),
  });

/** The secret as it stands, in JSON, and in an address. */
const spellings = (secret: string) => [
  secret,
  JSON.stringify(secret).slice(1, -1),
  JSON.stringify(JSON.stringify(secret)).slice(3, -3),
  encodeURIComponent(secret),
];

function expectNoSecret(text: string): void {
  for (const secret of Object.values(SECRETS)) {
    for (const spelling of spellings(secret)) expect(text).not.toContain(spelling);
  }
}

const ask = (url: string, body: object = {}) =>
  fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    body: JSON.stringify({ model: "m", messages: [], ...body }),
  });

test.each([200, 400, 422])(
  "an upstream that echoes all with %i gives away nothing",
  async (status) => {
    await using upstream = await startUpstream({ answers: echo(status) });
    await using service = await serviceFor(upstream.url);

    const batch = await service.run([chatLine("a", "Hello")]);
    const answer = await ask(service.url);

    const files = await Promise.all(
      [batch.output_file_id, batch.error_file_id].map((id) => service.text(id)),
    );
    expect(upstream.seen[0]?.body).toContain(SECRETS.extra);
    expect(files.join("")).toContain("You sent ");
    expectNoSecret(files.join(""));
    expectNoSecret(JSON.stringify([...answer.headers]));
    expectNoSecret(await answer.text());
    expectNoSecret(JSON.stringify(service.events.all));
    // All else is as it was.
    expect(files.join("")).toContain('"total_tokens":9007199254740993');
  },
);

test("a secret in pieces of a stream is found, and a stream without one is not delayed", async () => {
  await using upstream = await startUpstream({ answers: "by_hand" });
  await using service = await serviceFor(upstream.url);
  const pieces = [
    "data: hello\n\n",
    "data: s",
    SECRETS.key.slice(0, 1),
    SECRETS.key.slice(1, 9),
    `${SECRETS.key.slice(9)} `,
  ];
  const answer = ask(service.url, { stream: true });
  const { response } = await upstream.next();
  response.writeHead(200, { "content-type": "text/event-stream" });
  response.write(pieces[0]);
  const reader = (await answer).body!.getReader();
  const read = async () => Buffer.from((await reader.read()).value ?? []).toString();
  let seen = await read();
  expect(seen).toBe(pieces[0]);
  for (const piece of pieces.slice(1)) {
    response.write(piece);
    await new Promise((resolve) => setImmediate(resolve));
  }
  response.end("end\n\n");
  for (let text = await read(); text !== ""; text = await read()) seen += text;
  expect(seen).toMatch(
    /^data: hello\n\ndata: s\[redacted\]\**\s end\n\n$|^data: hello\n\ndata: s\[redacted\]\** end\n\n$/,
  );
});

test("an answer with a length keeps it", async () => {
  await using upstream = await startUpstream({ answers: "by_hand" });
  await using service = await serviceFor(upstream.url);
  const answer = ask(service.url);
  const exchange = await upstream.next();
  const body = JSON.stringify({ echo: SECRETS.header });
  exchange.response.writeHead(200, { "content-length": Buffer.byteLength(body) }).end(body);
  expect((await answer).headers.get("content-length")).toBe(String(body.length));
  const text = await (await answer).text();
  expect(JSON.parse(text)).toEqual({ echo: `[redacted]${"*".repeat(SECRETS.header.length - 10)}` });
});

test("a key that is changed while the server runs is a secret from then on", async () => {
  await using upstream = await startUpstream({ answers: "by_hand" });
  await using service = await serviceFor(upstream.url);
  const changed = "another-k3y-of-the-operator";
  service.reconfigure({ upstreams: [{ ...upstreamOf(upstream.url), api_key: changed }] });
  const answer = ask(service.url);
  answerWith(await upstream.next(), { echo: changed });
  expect(await (await answer).text()).toBe(
    `{"echo":"[redacted]${"*".repeat(changed.length - 10)}"}`,
  );
});

test("the log of the process shows no secret, whichever part writes it there", async () => {
  const dir = await mkdtemp(join(tmpdir(), "batchd-redactor-"));
  onTestFinished(() => rm(dir, { recursive: true, force: true }));
  const config = join(dir, "batchd.yaml");
  const upstream = { ...upstreamOf("http://127.0.0.1:9/v1"), api_key: "sk-operator-in-a-path-1" };
  const values = { server: { port: 0 }, log_level: "debug", data_dir: dir, upstreams: [upstream] };
  await writeFile(config, JSON.stringify(values));
  await using server = new BatchdProcess(["serve", "--config", config]);
  const url = await server.listening();
  await fetch(`${url}/v1/files/file-${upstream.api_key}`);
  await server.loggedLike(/"path":"\/v1\/files\/file-/);
  const { stderr } = await server.kill();
  expect(stderr).toContain("file-[redacted]");
  expect(stderr).not.toContain(upstream.api_key);
});

/** Shows in each answer the headers that it was asked with. */
async function startMirror(): Promise<string> {
  const mirror = createServer(({ method, headers }, answer) => {
    const message = `no: ${JSON.stringify(headers)}`;
    const body = `<Error><Code>InvalidToken</Code><Message>${message}</Message></Error>`;
    answer.writeHead(403, { "content-type": "application/xml" });
    answer.end(method === "HEAD" ? "" : body);
  });
  return `http://127.0.0.1:${await listening(mirror)}`;
}

const OF_MACHINE = {
  AWS_ACCESS_KEY_ID: "key-id-of-the-machine",
  AWS_SECRET_ACCESS_KEY: "secret-of-the-machine-1",
  AWS_SESSION_TOKEN: "session/token+of-the-machine==",
};

describe("secrets that are in the environment alone", () => {
  /** A message quotes only its beginning. */
  const LONG = "long1".repeat(200);
  const environment = {
    ...OF_MACHINE,
    OTEL_EXPORTER_OTLP_HEADERS: `x-team-key=hcaik0123456789,authorization=Bearer%20otlp-t0ken-4455,x-long=${LONG}`,
  };
  const secrets = [
    environment.AWS_SESSION_TOKEN,
    "hcaik0123456789",
    "otlp-t0ken-4455",
    "long1long1",
  ];
  const start = async (config: object) => {
    const dir = await mkdtemp(join(tmpdir(), "batchd-redactor-"));
    onTestFinished(() => rm(dir, { recursive: true, force: true }));
    const path = join(dir, "batchd.yaml");
    await writeFile(path, JSON.stringify({ server: { port: 0 }, data_dir: dir, ...config }));
    return new BatchdProcess(["serve", "--config", path], environment);
  };

  test("are not in the log when the receiver of traces shows what it was sent", async () => {
    await using server = await start({ tracing: { endpoint: `${await startMirror()}/v1/traces` } });
    const url = await server.listening();
    const form = new FormData();
    form.append("purpose", "batch");
    form.append("file", new Blob([chatLine("a", "b")]), "a.jsonl");
    await fetch(`${url}/v1/files`, { method: "POST", body: form });
    await server.loggedLike(/traces\.not_sent/);
    const { stderr } = await server.kill();
    expect(stderr).toContain("[redacted]");
    for (const secret of secrets) expect(stderr).not.toContain(secret);
  });

  test("are not in what a start says that fails because a bucket shows what it was sent", async () => {
    const endpoint = await startMirror();
    await using server = await start({
      storage: { type: "s3", bucket: "results", region: "us-east-1", endpoint },
    });
    const { stderr } = await server.exited();
    expect(stderr).toContain('"x-amz-security-token":"[redacted]"');
    for (const secret of secrets) expect(stderr).not.toContain(secret);
  });
});

test("a client does not read the session token of the machine in what a location says of its delivery", async () => {
  for (const [name, value] of Object.entries(OF_MACHINE)) vi.stubEnv(name, value);
  onTestFinished(() => void vi.unstubAllEnvs());
  await using upstream = await startUpstream();
  const endpoint = await startMirror();
  const place = { name: "lake", kind: "s3", access: "write", bucket: "lake", region: "us-east-1" };
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { locations: [{ ...place, endpoint }] },
  });
  const { id } = await service.run([chatLine("a", "b")]);
  await service.post(`/batches/${id}/deliveries`, { location: "lake" });
  await service.events.reached("delivery.given_up", { batch: id });
  const answer = await fetch(`${service.url}/v1/batches/${id}/deliveries`);
  const text = await answer.text();
  expect(text).toContain("x-amz-security-token");
  expect(text).not.toContain(OF_MACHINE.AWS_SESSION_TOKEN);
});

describe("what counts as a secret", () => {
  const secretsOf = (keys: object) =>
    upstreamSecrets(
      UpstreamEntry.parse({ name: "u", base_url: "http://h/v1", models: ["*"], ...keys }),
    );

  test("are keys, passwords, parameters, headers that may hold one, and fields that are called so", () => {
    const secrets = secretsOf({
      base_url: "http://ann:p%40ssw0rd@h/v1?sig=s1gnature&api-version=2024-10-21",
      api_key: "sk-1234567890",
      headers: { "x-api-token": "Token t0k3n-t0k3n", "x-flag": "1", "x-odd": "qwertz12345" },
      proxy: "http://p:proxypass@proxy:3128",
      extra_body: { auth: { nested: ["deep-secret"] }, user: "batch" },
    });
    for (const secret of [
      "p@ssw0rd",
      "s1gnature",
      "sk-1234567890",
      "t0k3n-t0k3n",
      "qwertz12345",
      "proxypass",
      "deep-secret",
    ]) {
      expect(secrets).toContain(secret);
    }
    expect(secrets).not.toContain("batch");
  });

  test("are not headers that are plainly none, nor words too short to be told from text", () => {
    const secrets = secretsOf({
      api_key: "ollama",
      headers: {
        "anthropic-version": "2023-06-01",
        accept: "application/json",
        "x-team": "research",
      },
    });
    const text = "On 2023-06-01 ollama answered application/json to research";
    expect(new Redactor(secrets).text(text)).toBe(text);
  });
});

test("whatever the pieces, the whole is what it is without a secret in it", () => {
  const secret = "abcabcabd-key-1";
  const redactor = new Redactor([secret]);
  const piece = fc.constantFrom(secret, "abc", "abcabc", "abcabcabd-", "x", "key-1", "-", "");
  fc.assert(
    fc.property(
      fc.array(piece, { maxLength: 12 }),
      fc.infiniteStream(fc.nat(9)),
      (pieces, cuts) => {
        const whole = Buffer.from(pieces.join(""));
        const stream = redactor.stream();
        const seen: Buffer[] = [];
        for (let at = 0; at < whole.length; ) {
          const size = 1 + (cuts.next().value as number);
          seen.push(stream.push(whole.subarray(at, at + size)));
          at += size;
        }
        seen.push(stream.end());
        const text = Buffer.concat(seen).toString();
        expect(text).toBe(
          whole.toString().replaceAll(secret, `[redacted]${"*".repeat(secret.length - 10)}`),
        );
      },
    ),
  );
});

test("an answer without a secret comes back as the same bytes, and is searched quickly", () => {
  const redactor = new Redactor(Object.values(SECRETS));
  const body = Buffer.from(
    JSON.stringify({ text: "Hello sk-operator ".repeat(60), n: randomInt(9) }),
  );
  expect(redactor.bytes(body)).toBe(body);
});

test("a configuration may have tens of thousands of keys of one form, all of them anew", () => {
  const keysOf = (month: string) =>
    Array.from({ length: 20_000 }, (_, i) => `sk-team-${month}-${i}-0f3a9c`);
  const redactor = new Redactor(keysOf("may"));
  redactor.add(keysOf("june"));
  expect(redactor.text("sk-team-may-19999-0f3a9c and sk-team-june-0-0f3a9c, sk-team-july-1")).toBe(
    "[redacted] and [redacted], sk-team-july-1",
  );
});

test("nothing is left of a secret that contains another one", () => {
  const redactor = new Redactor(["abcdef12", "abcdef12-and-more"]);
  const text = "key abcdef12-and-more, key abcdef12";
  expect(redactor.text(text)).toBe("key [redacted], key [redacted]");
  expect(`${redactor.bytes(Buffer.from(text))}`).toBe("key [redacted]*******, key ********");
});
