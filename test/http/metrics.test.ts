import { expect, test } from "vitest";
import { NO_USAGE } from "../../src/batch/batch.ts";
import { METRICS } from "../../src/telemetry/metric-table.ts";
import { Metrics } from "../../src/telemetry/metrics.ts";
import { version } from "../../src/version.ts";
import { ask, clientOf, LINE, post, upload } from "../support/projects.ts";
import { Scrape } from "../support/prometheus.ts";
import { rawRequest } from "../support/raw-http.ts";
import { startReceiver } from "../support/receiver.ts";
import { chatLine, chatLines, startTestService, type TestService } from "../support/service.ts";
import { startTestApi } from "../support/test-http.ts";
import { startUpstream } from "../support/upstream.ts";

const NOW = { targets: [], openWork: null, heldBytes: {}, nowMs: 0 };

async function scrape({ url }: Pick<TestService, "url">): Promise<Scrape> {
  const response = await fetch(`${url}/metrics`);
  expect(response.status).toBe(200);
  expect(response.headers.get("content-type")).toMatch(/^text\/plain; version=0\.0\.4/);
  return new Scrape(await response.text());
}

test("a batch with retries and failures is counted exactly", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const batch = await service.run([
    chatLine("good-1", "Hello"),
    chatLine("good-2", "Hello"),
    chatLine("retried", "[[status 500 x2]]"),
    chatLine("bad", "[[status 404]]"),
    chatLine("cut", "[[reset x1]]"),
  ]);
  expect(batch.request_counts).toEqual({ total: 5, completed: 4, failed: 1 });

  const seen = await scrape(service);
  const target = "test";
  const attempts = (outcome: string, status: string) =>
    seen.value("batchd_upstream_attempts_total", { target, outcome, status });
  expect(attempts("answered", "2xx")).toBe(4);
  expect(attempts("answered", "4xx")).toBe(1);
  expect(attempts("answered", "5xx")).toBe(2);
  expect(attempts("broken", "none")).toBe(1);
  expect(seen.value("batchd_upstream_attempts_total")).toBe(upstream.total);
  expect(seen.value("batchd_upstream_attempt_duration_seconds_count", { target })).toBe(8);
  expect(seen.value("batchd_upstream_wait_seconds_count", { target, lane: "batch" })).toBe(8);
  const retries = (reason: string) =>
    seen.value("batchd_upstream_retries_total", { target, reason });
  expect([retries("server_error"), retries("broken")]).toEqual([2, 1]);
  expect(seen.value("batchd_upstream_retries_total")).toBe(3);
  const ours = { model: "test-model", project: "default" };
  expect(seen.value("batchd_lines_total", { outcome: "completed", ...ours })).toBe(4);
  expect(seen.value("batchd_lines_total", { outcome: "failed", ...ours })).toBe(1);
  expect(seen.value("batchd_lines_total")).toBe(5);
  expect(seen.value("batchd_tokens_total", { kind: "input", ...ours })).toBe(
    batch.usage?.input_tokens,
  );
  expect(seen.value("batchd_tokens_total", { kind: "output" })).toBe(batch.usage?.output_tokens);
  expect(seen.value("batchd_batches_created_total")).toBe(1);
  expect(seen.value("batchd_batches_ended_total", { status: "completed" })).toBe(1);
  expect(seen.value("batchd_batch_slack_seconds_bucket", { le: "82800" })).toBe(0);
  expect(seen.value("batchd_batch_slack_seconds_count", { status: "completed" })).toBe(1);
  expect(seen.find("batchd_batches_open")).toEqual([]);
  expect(seen.value("batchd_lines_open")).toBe(0);
  expect(seen.value("batchd_deadline_slack_seconds")).toBe(Number.POSITIVE_INFINITY);
  const leases = (kind: string, change: string) =>
    seen.value("batchd_lease_changes_total", { kind, change });
  expect([leases("batch", "claimed"), leases("batch", "closed")]).toEqual([2, 2]);
  expect([leases("chunk", "claimed"), leases("chunk", "closed")]).toEqual([1, 1]);
  expect(seen.value("batchd_lease_changes_total")).toBe(6);
  expect(seen.value("batchd_journal_segments_total")).toBeGreaterThan(0);
  expect(seen.value("batchd_journal_bytes_total")).toBeGreaterThan(5 * 100);
});

test("what is under way shows while it is", async () => {
  await using upstream = await startUpstream();
  upstream.hold();
  const config = {
    upstreams: [{ name: "gpu", base_url: upstream.url, models: ["*"], max_concurrency: 2 }],
  };
  await using service = await startTestService({ config });
  const { id } = await service.submit(chatLines(10));
  await upstream.reached(2);

  const seen = await scrape(service);
  const target = "gpu";
  expect(seen.value("batchd_upstream_concurrency_limit", { target })).toBe(2);
  expect(seen.value("batchd_upstream_in_flight", { target, lane: "batch" })).toBe(2);
  expect(seen.value("batchd_upstream_in_flight", { target, lane: "interactive" })).toBe(0);
  expect(seen.value("batchd_upstream_waiting", { target })).toBeGreaterThan(0);
  const states = seen.find("batchd_upstream_circuit_state", { target });
  expect(states.map(({ labels, value }) => [labels["state"], value])).toEqual([
    ["closed", 1],
    ["half_open", 0],
    ["open", 0],
  ]);
  expect(seen.value("batchd_batches_open", { status: "in_progress" })).toBe(1);
  expect(seen.value("batchd_lines_open")).toBe(10);
  const slackSeconds = seen.value("batchd_deadline_slack_seconds");
  expect(slackSeconds).toBeGreaterThan(86_000);
  expect(slackSeconds).toBeLessThanOrEqual(86_400);
  upstream.release();
  await service.ended(id);
});

test("the lines of a paused batch do not look like a queue that stands still", async () => {
  await using upstream = await startUpstream();
  upstream.hold();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const { id } = await service.submit(chatLines(10));
  await upstream.reached(1);
  const open = async () => {
    const seen = await scrape(service);
    return [seen.value("batchd_batches_open"), seen.value("batchd_lines_open")];
  };
  expect(await open()).toEqual([1, 10]);
  await service.openai.post(`/batches/${id}/pause`);
  expect(await open()).toEqual([1, 0]);
  await service.openai.post(`/batches/${id}/resume`);
  expect(await open()).toEqual([1, 10]);
  upstream.release();
  await service.ended(id);
});

test("only the path itself leads to the metrics, as a proxy compares it", async () => {
  await using service = await startTestService();
  const statusOf = async (target: string) =>
    (await rawRequest(service.url, `GET ${target} HTTP/1.1\r\nHost: a\r\n\r\n`)).status;
  for (const target of ["/metrics", "/metrics?x=/", "http://a/metrics"]) {
    expect([target, await statusOf(target)]).toEqual([target, 200]);
  }
  for (const target of [
    ...["/metrics/", "//metrics", "/metrics//", "/./metrics", "/a/../metrics", "/metrics/."],
    ...["/metrics/a/..", "/%6detrics", "/metrics%2f", "/a/%2e%2e/metrics", "http://a//metrics"],
    ...["/metrics#", "/\\metrics", "/metrics\\"],
  ]) {
    const status = await statusOf(target);
    expect([target, status]).toEqual([target, status === 400 ? 400 : 404]);
  }
});

test("work that a drain interrupts is given back, not lost", async () => {
  await using upstream = await startUpstream();
  upstream.hold();
  const metrics = new Metrics();
  const config = { engine: { drain_grace_seconds: 0 } };
  await using service = await startTestService({ upstreamUrl: upstream.url, metrics, config });
  await service.submit(chatLines(1));
  await upstream.reached(1);
  await service.close();
  const { value } = read(await metrics.scrape(NOW));
  const chunks = (change: string) => value("batchd_lease_changes_total", { kind: "chunk", change });
  expect([chunks("claimed"), chunks("released"), chunks("closed"), chunks("lost")]).toEqual([
    1, 1, 0, 0,
  ]);
  expect(value("batchd_upstream_attempts_total", { outcome: "interrupted" })).toBe(1);
  expect(value("batchd_lines_total")).toBe(0);
});

test("deliveries to webhooks are counted, and a batch whose input is refused has ended", async () => {
  await using receiver = await startReceiver();
  receiver.reactNext({ status: 500 });
  await using service = await startTestService({
    config: {
      webhooks: {
        endpoints: [{ name: "hook", url: receiver.url, secret: "s" }],
        allow_private_hosts: ["127.0.0.1"],
      },
    },
  });
  await service.run(chatLines(1));
  await service.events.reached("webhook.attempt_failed");
  const seen = await scrape(service);
  expect(seen.value("batchd_webhook_attempts_total", { webhook: "hook", outcome: "failed" })).toBe(
    1,
  );
  expect(seen.value("batchd_batches_ended_total", { status: "failed" })).toBe(1);
});

test("requests are counted by the pattern of their route, for every client and path", async () => {
  await using api = await startTestApi({ keys: [{ name: "k", key: "secret", project: "p" }] });
  const authorization = { authorization: "Bearer secret" };
  for (const id of ["batch_1", "batch_2"]) {
    await api.fetch(`/v1/batches/${id}`, { headers: authorization });
    await api.fetch(`/openai/batches/${id}`, { headers: authorization });
  }
  await api.fetch("/v1/batches/batch_1");
  await api.fetch("/v1/batches/batch_1", { method: "DELETE", headers: authorization });
  await api.fetch("/no/such/place");
  await api.fetch("/no/such/place", { method: "PROPFIND" });

  const seen = await scrape(api);
  const requests = seen.find("batchd_http_requests_total");
  expect(requests.map(({ labels, value }) => [...Object.values(labels), value])).toEqual([
    ["GET", "/v1/batches/:id", "404", 4],
    ["GET", "/v1/batches/:id", "401", 1],
    ["DELETE", "/v1/batches/:id", "404", 1],
    ["GET", "other", "404", 1],
    ["other", "other", "404", 1],
  ]);
  expect(seen.value("batchd_http_request_duration_seconds_count")).toBe(8);
});

test("no key is asked for, and none is shown", async () => {
  await using api = await startTestApi({ keys: [{ name: "k", key: "secret", project: "p" }] });
  const text = await (await fetch(`${api.url}/metrics`)).text();
  expect(text).not.toContain("secret");
  const head = await fetch(`${api.url}/metrics`, { method: "HEAD" });
  expect(head.status).toBe(200);
});

test("each metric of the table is shown as the table says, and no other", async () => {
  const metrics = new Metrics();
  const { families, value } = read(await metrics.scrape(NOW));
  const table = Object.entries(METRICS).map(([name, { type, help }]) => [name, { type, help }]);
  expect(new Map(families)).toEqual(new Map(table as []));
  expect(value("batchd_build_info", { version })).toBe(1);
  for (const { labels } of Object.values(METRICS)) {
    expect(labels.filter((label) => !/^[a-z]+$/.test(label))).toEqual([]);
  }
});

test("units are in the names", () => {
  const suffixOf = { counter: /_total$/, histogram: /_seconds$/, gauge: /(?<!_total|_count)$/ };
  for (const [name, { type }] of Object.entries(METRICS)) expect(name).toMatch(suffixOf[type]);
});

test("clients that name ever more models get a bounded number of series", async () => {
  const metrics = new Metrics();
  const usage = {
    inputTokens: 1,
    cachedTokens: 0,
    outputTokens: 0,
    reasoningTokens: 0,
    totalTokens: 1,
  };
  const flush = (model: string) =>
    metrics.journalFlushed({ bytes: 1, completed: 1, failed: 0, usage }, { model, project: "p" });
  flush("x".repeat(10_000));
  for (let i = 0; i < 1_000; i++) flush(`model-${i}`);
  flush("model-0");

  const text = await metrics.scrape(NOW);
  const seen = new Scrape(text);
  const completed = { outcome: "completed" };
  expect(seen.find("batchd_lines_total", completed)).toHaveLength(101);
  expect(seen.value("batchd_lines_total", { ...completed, model: "model-0" })).toBe(2);
  expect(seen.value("batchd_lines_total", { ...completed, model: "other" })).toBe(901);
  expect(text.length).toBeLessThan(200_000);
});

test("a project that names ever more models takes no series from another one, nor doubles any", async () => {
  await using upstream = await startUpstream();
  const keys = ["loud", "quiet"].map((name) => ({ name, key: `key-${name}`, project: name }));
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { auth: { keys } },
  });
  const run = async (project: string, model: string) => {
    const openai = clientOf(service.url, `key-${project}`);
    const file = new File([chatLine("a", "Hello", { model })], "input.jsonl");
    const { id: input_file_id } = await openai.files.create({ file, purpose: "batch" });
    const request = { endpoint: "/v1/chat/completions", completion_window: "24h" } as const;
    const { id: batch } = await openai.batches.create({ input_file_id, ...request });
    await service.events.reached("batch.completed", { batch });
  };
  // In the text of a scrape, which is UTF-8, both halves of a pair are the same sign.
  await run("loud", "half-\ud83d");
  await run("loud", "half-\ude00");
  for (let n = 0; n < 101; n++) await run("loud", `invented-${n}`);
  await run("quiet", "model-of-quiet");
  const seen = await scrape(service);
  const outcome = "completed";
  const of = (project: string) => seen.find("batchd_lines_total", { outcome, project });
  expect(of("quiet")).toMatchObject([{ labels: { model: "model-of-quiet" }, value: 1 }]);
  expect(of("loud")).toHaveLength(101);
  expect(of("loud").filter(({ labels }) => labels["model"] === "half-\ufffd")).toMatchObject([
    { value: 2 },
  ]);
});

test("a deleted project leaves no series behind, and the others keep theirs", async () => {
  await using upstream = await startUpstream();
  const admin = { name: "operator", key: "key-admin", scopes: ["read", "write", "admin"] };
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { auth: { keys: [{ ...admin, project: "stays" }] } },
  });
  const made = await post(service.url, "admin/keys", { name: "k", project: "goes" }, admin.key);
  for (const key of [admin.key, (made.body as { key?: string }).key ?? ""]) {
    const input_file_id = (await upload(service.url, LINE, key)).body.id;
    const request = { endpoint: "/v1/chat/completions", completion_window: "24h" };
    const { body } = await post(service.url, "batches", { input_file_id, ...request }, key);
    await service.events.reached("batch.completed", { batch: body.id });
  }
  const seriesOf = async (project: string) => {
    const seen = await scrape(service);
    const names = Object.entries(METRICS).filter(([, { labels }]) =>
      (labels as readonly string[]).includes("project"),
    );
    return names.map(([name]) => seen.find(name, { project }).length);
  };
  await expect.poll(() => seriesOf("goes")).toEqual([1, 1, 2, 4]);
  await ask(service.url, "admin/projects/goes", { method: "DELETE" }, admin.key);
  await expect.poll(() => seriesOf("goes"), { timeout: 30_000 }).toEqual([0, 0, 0, 0]);
  expect(await seriesOf("stays")).toEqual([1, 1, 2, 4]);
});

test("a scrape of many values leaves turns of the event loop to others", async () => {
  const metrics = new Metrics();
  const flushed = { bytes: 1, completed: 1, failed: 0, usage: NO_USAGE };
  for (let n = 0; n < 5_000; n++) {
    metrics.journalFlushed(flushed, { model: "m", project: `project-${n}` });
  }
  let isOver = false;
  let turns = 0;
  const countTurns = () => {
    turns++;
    if (!isOver) setImmediate(countTurns);
  };
  setImmediate(countTurns);
  const seen = new Scrape(await metrics.scrape(NOW));
  isOver = true;
  expect(turns).toBeGreaterThan(2);
  expect(seen.value("batchd_lines_total", { outcome: "completed" })).toBe(5_000);
});

test("names keep the rules of Prometheus, those of the process too: only counters end in _total", async () => {
  const metrics = new Metrics();
  metrics.watchProcess();
  for (const [name, { type, help }] of read(await metrics.scrape(NOW)).families) {
    expect([name, name.endsWith("_total")]).toEqual([name, type === "counter"]);
    expect([name, help]).not.toEqual([name, ""]);
  }
});

test("the process itself is measured where it is asked for, and several servers share none of it", async () => {
  const [first, second] = [new Metrics(), new Metrics()];
  first.watchProcess();
  first.batchCreated({ project: "p" });
  const one = read(await first.scrape(NOW));
  const other = read(await second.scrape(NOW));
  expect(one.value("process_resident_memory_bytes")).toBeGreaterThan(0);
  expect(one.value("nodejs_heap_size_used_bytes")).toBeGreaterThan(0);
  expect(one.value("batchd_batches_created_total")).toBe(1);
  expect(other.value("batchd_batches_created_total")).toBe(0);
  expect(other.families.has("process_resident_memory_bytes")).toBe(false);
});

function read(text: string) {
  const scrape = new Scrape(text);
  return { families: scrape.families, value: scrape.value.bind(scrape) };
}
