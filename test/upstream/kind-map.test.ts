/** What a server keeps of the kinds of requests that an upstream refuses, and which of them go when there are too many. */
import { expect, test } from "vitest";
import type { UpstreamList } from "../../src/contract/upstream.ts";
import { startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const KEYS = [
  { name: "operator", key: "key-of-operator", project: "operations", scopes: ["admin"] },
  { name: "search", key: "key-of-search", project: "search" },
  { name: "chat", key: "key-of-chat", project: "chat" },
];

test("a project that asks for ever new refused models ends no hold of another one, and hides none", async () => {
  const refusal = JSON.stringify({ error: { message: "Wrong key", code: "invalid_api_key" } });
  await using upstream = await startUpstream({ answers: () => ({ status: 401, body: refusal }) });
  const upstreams = [{ name: "gpu", base_url: upstream.url, models: ["*"] }];
  await using service = await startTestService({ config: { upstreams, auth: { keys: KEYS } } });
  const as = (key: string) => ({ authorization: `Bearer ${key}` });
  const chat = async (key: string, model: string) => {
    const body = JSON.stringify({ model, messages: [{ role: "user", content: "Hi" }] });
    const answer = await fetch(`${service.url}/v1/chat/completions`, {
      method: "POST",
      headers: as(key),
      body,
    });
    await answer.text();
  };
  const held = async () => {
    const headers = as("key-of-operator");
    const answer = await fetch(`${service.url}/v1/admin/upstreams`, { headers });
    return ((await answer.json()) as UpstreamList).data[0]?.held ?? [];
  };
  const isHeld = async () => {
    await chat("key-of-search", "m");
    return (await held()).length > 0;
  };
  await expect.poll(isHeld).toBe(true);
  for (let i = 0; i < 1_000; i += 50) {
    await Promise.all(Array.from({ length: 50 }, (_, j) => chat("key-of-chat", `m-${i + j}`)));
  }
  expect((await held()).filter(({ project }) => project === "search")).toEqual([
    expect.objectContaining({ model: "m", reason: "refused_credentials" }),
  ]);
});
