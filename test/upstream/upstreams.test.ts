import { describe, expect, onTestFinished, test } from "vitest";
import { type UpstreamConfig, UpstreamEntry } from "../../src/config/upstreams.ts";
import { openTargets } from "../support/targets.ts";
import { startUpstream, type UpstreamOptions } from "../support/upstream.ts";

const open = (upstreams: UpstreamConfig[]) => openTargets(upstreams).upstreams;

const config = (name: string, base_url: string, models: UpstreamConfig["models"]) =>
  UpstreamEntry.parse({ name, base_url, models, max_concurrency: 4, timeout_seconds: 5 });

async function server(options: UpstreamOptions) {
  const upstream = await startUpstream(options);
  onTestFinished(() => upstream.close());
  return upstream;
}

test("models that the same targets serve share one route", async () => {
  const upstreams = open([
    config("a", "http://127.0.0.1:9/v1", ["x", "y", "z"]),
    config("b", "http://127.0.0.1:9/v1", ["y", { name: "x", upstream_model: "other" }]),
  ]);
  expect(upstreams.findRoute("x")).toBe(upstreams.findRoute("y"));
  expect(upstreams.findRoute("x")).toMatchObject({ key: "a,b" });
  expect(upstreams.findRoute("z")).toMatchObject({ key: "a" });
  expect(upstreams.findRoute("unlisted")).toBeNull();
});

test("lines may have all slots of the part that a replica has of a target", () => {
  const upstreams = open([
    { ...config("a", "http://127.0.0.1:9/v1", ["x"]), min_concurrency: 4, interactive_reserve: 0 },
  ]);
  const slotCountAt = (slotCount: number) => {
    upstreams.setShares([{ target: "a", slotCount, fraction: slotCount / 4 }]);
    return upstreams.findRoute("x")?.slotCount;
  };
  expect([0, 1, 2, 3, 4].map(slotCountAt)).toEqual([0, 1, 2, 3, 4]);
});

describe("the list of models", () => {
  test("has listed names, then what open targets say they have, each name once", async () => {
    const upstream = await server({ modelNames: ["listed", "found", "found too"], apiKey: "k" });
    const upstreams = open([
      config("a", "http://127.0.0.1:9/v1", ["listed", "also listed"]),
      { ...config("b", upstream.url, ["*"]), api_key: "k" },
      { ...config("c", upstream.url, ["*"]), api_key: "k" },
    ]);
    expect(await upstreams.listModels()).toEqual([
      { id: "listed", ownedBy: "a" },
      { id: "also listed", ownedBy: "a" },
      { id: "found", ownedBy: "b" },
      { id: "found too", ownedBy: "b" },
    ]);
  });

  test("leaves out targets that do not answer it", async () => {
    const refusing = await server({ apiKey: "another key" });
    const upstreams = open([
      config("down", "http://127.0.0.1:9/v1", ["*"]),
      config("refusing", refusing.url, ["*", "listed"]),
    ]);
    expect(await upstreams.listModels()).toEqual([{ id: "listed", ownedBy: "refusing" }]);
  });
});
