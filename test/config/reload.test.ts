import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { TAKES_EFFECT } from "../../src/config/changes.ts";
import { type ConfigResult, parseConfig } from "../../src/config/config.ts";
import { reloading } from "../../src/config/reload.ts";
import type { Config } from "../../src/config/schema.ts";
import { Metrics } from "../../src/telemetry/metrics.ts";
import { Events } from "../support/events.ts";
import { Scrape } from "../support/prometheus.ts";
import { configWith } from "../support/yaml-config.ts";

const upstream = (name: string, more: object = {}) => ({
  name,
  base_url: `http://${name}/v1`,
  api_key: "sk-secret",
  models: ["m"],
  ...more,
});

/** A server that runs with `values`, and what has been applied to it since. */
function running(values: object) {
  const events = new Events();
  const applied: Config[] = [];
  const metrics = new Metrics();
  const reload = reloading({
    config: configWith(values),
    warningsOf: () => [],
    apply: (config) => applied.push(config),
    log: events.log,
    metrics,
  });
  const load = (other: unknown) => {
    reload(parseConfig(other));
  };
  return { load, applied, events, metrics };
}

test("both what is taken and what is refused is counted", async () => {
  const { load, metrics } = running({});
  load({ upstreams: [upstream("a")] });
  load({ upstreams: "none" });
  load({ upstreams: [] });
  const seen = new Scrape(
    await metrics.scrape({ targets: [], openWork: null, heldBytes: {}, nowMs: 0 }),
  );
  expect(seen.value("batchd_config_reloads_total", { outcome: "ok" })).toBe(2);
  expect(seen.value("batchd_config_reloads_total", { outcome: "refused" })).toBe(1);
});

test("a file that was empty from the start is loaded again as it is", () => {
  const events = new Events();
  const empty: ConfigResult = { ok: true, config: configWith({}), isFileEmpty: true };
  const metrics = new Metrics();
  const config = configWith({});
  reloading({ config, warningsOf: () => [], apply: () => {}, log: events.log, metrics })(empty);
  expect(events.count("config.reloaded")).toBe(1);
});

test("tells which upstreams came, went and changed", () => {
  const { load, applied, events } = running({ upstreams: ["a", "b", "c"].map((n) => upstream(n)) });
  const upstreams = [upstream("c"), upstream("b", { max_concurrency: 3 }), upstream("d")];
  load({ upstreams });
  expect(events.all).toMatchObject([
    {
      event: "config.reloaded",
      level: "info",
      upstreams: { added: ["d"], removed: ["a"], changed: ["b"] },
    },
  ]);
  expect(applied).toEqual([configWith({ upstreams })]);
});

test("takes on the default model, and whether models may mix", () => {
  const { load, applied, events } = running({});
  load({ default_model: "m", limits: { allow_mixed_models: true } });
  expect(applied).toEqual([
    configWith({ default_model: "m", limits: { allow_mixed_models: true } }),
  ]);
  expect(events.count("config.restart_needed")).toBe(0);
});

test("names what has to wait for a restart, without its values, and leaves it as it is", () => {
  const before = { upstreams: [upstream("a")] };
  const { load, applied, events } = running(before);
  load({
    upstreams: [upstream("b")],
    server: { port: 1234 },
    data_dir: "/elsewhere",
    engine: { drain_grace_seconds: 1 },
    tracing: { endpoint: "http://me:sk-secret@traces:4318/v1/traces" },
  });
  expect(events.all.at(-1)).toMatchObject({
    event: "config.restart_needed",
    level: "warn",
    keys: expect.arrayContaining([
      "server.port",
      "data_dir",
      "engine.drain_grace_seconds",
      "tracing",
    ]),
  });
  expect(events.all.at(-1)?.["keys"]).toHaveLength(4);
  expect(JSON.stringify(events.all)).not.toContain("sk-secret");
  expect(applied).toEqual([configWith({ upstreams: [upstream("b")] })]);
});

test("takes on limits, keys, webhooks and the level of the log, and names them without their values", () => {
  const { load, applied, events } = running({});
  const values = {
    limits: { max_line_bytes: 2_048 },
    auth: { keys: [{ name: "ci", key: "sk-secret" }] },
    webhooks: { endpoints: [{ name: "w", url: "http://w", secret: "sk-secret" }] },
    log_level: "debug",
  };
  load(values);
  expect(applied).toEqual([configWith(values)]);
  const reloaded = events.all.find(({ event }) => event === "config.reloaded");
  expect(new Set(reloaded?.["keys"] as string[])).toEqual(
    new Set(["limits.max_line_bytes", "auth", "webhooks.endpoints", "log_level"]),
  );
  expect(events.count("config.restart_needed")).toBe(0);
  expect(JSON.stringify(events.all)).not.toContain("sk-secret");
  load({ auth: values.auth });
  expect(applied.at(-1)).toEqual(configWith({ auth: values.auth }));
});

test("warns of the same keys at every reload until the file says again what the server was started with", () => {
  const { load, events } = running({});
  load({ data_dir: "/elsewhere" });
  load({ data_dir: "/elsewhere" });
  expect(events.count("config.restart_needed")).toBe(2);
  load({});
  expect(events.count("config.restart_needed")).toBe(2);
});

test("refuses a bad file as a whole, with every problem, and stays as it was", () => {
  const { load, applied, events } = running({ upstreams: [upstream("a")] });
  load({ upstreams: [upstream("b"), upstream("b")], prot: 1 });
  load({ upstreams: [{ name: "c" }], prot: 1 });
  expect(applied).toEqual([]);
  expect(events.all.map(({ event }) => event)).toEqual(["config.refused", "config.refused"]);
  expect(events.all[1]).toMatchObject({
    level: "error",
    problems: expect.arrayContaining(["upstreams[0].base_url: required", "prot: unknown key"]),
  });
  load({ upstreams: [upstream("a"), upstream("b")] });
  expect(events.all.at(-1)).toMatchObject({
    upstreams: { added: ["b"], removed: [], changed: [] },
  });
});

test("the guide for operators says of every group whether it needs a restart", () => {
  const guide = readFileSync("docs/operating.md", "utf8");
  const namedIn = (sentence: RegExp) =>
    [...(sentence.exec(guide)?.[0] ?? "").matchAll(/`(\w+)`/g)].map(([, name]) => name).sort();
  const groupsWith = (effect: string) =>
    Object.entries(TAKES_EFFECT)
      .filter(([, each]) => each === effect)
      .map(([name]) => name)
      .sort();
  expect(namedIn(/SIGHUP\.[^:]*take effect at once:/)).toEqual(groupsWith("at_once"));
  expect(namedIn(/^`server`.*need a restart/m)).toEqual(groupsWith("after_restart"));
});
