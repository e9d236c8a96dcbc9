/** The events of open pages: what they cost, and whom they may hold up. */
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestService, type TestService } from "../support/service.ts";

const MAX_OF_PROJECT = 75;
let service: TestService;
const opened: AbortController[] = [];

beforeAll(async () => {
  const keys = ["a", "b"].map((name) => ({ name, key: `key-of-${name}`, project: name }));
  service = await startTestService({ config: { auth: { keys } } });
});
afterAll(() => service[Symbol.asyncDispose]());

async function cookieOf(name: string): Promise<string> {
  const answer = await fetch(`${service.url}/web/sign-in`, {
    ...{ method: "POST", redirect: "manual" },
    headers: { "sec-fetch-site": "same-origin" },
    body: new URLSearchParams({ key: `key-of-${name}` }),
  });
  return answer.headers.getSetCookie()[0]!.split(";")[0]!;
}

async function open(cookie: string, query = ""): Promise<Response> {
  const controller = new AbortController();
  opened.push(controller);
  const headers = { cookie, "sec-fetch-site": "same-origin" };
  return fetch(`${service.url}/web/live${query}`, { headers, signal: controller.signal });
}

const statuses = (answers: readonly Response[]) => answers.map(({ status }) => status);

async function pollsSoFar(): Promise<number> {
  const text = await (await fetch(`${service.url}/metrics`)).text();
  const lines = text
    .split("\n")
    .filter((line) => /^batchd_http_requests_total\{.*route="\/v1\/batches"/.test(line));
  return lines.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

test("a project has a part of the streams, and the other projects keep theirs", async () => {
  const [a, b] = [await cookieOf("a"), await cookieOf("b")];
  const first = await Promise.all(Array.from({ length: MAX_OF_PROJECT }, () => open(a)));
  expect(new Set(statuses(first))).toEqual(new Set([200]));
  expect(statuses([await open(a), await open(b)])).toEqual([503, 200]);

  // All of them share one poll for each project.
  const readers = [first[0]!, first.at(-1)!].map((answer) => answer.body!.getReader());
  for (const reader of readers) expect((await reader.read()).done).toBe(false);
  const polls = await pollsSoFar();
  expect(polls).toBeGreaterThan(0);
  expect(polls).toBeLessThan(MAX_OF_PROJECT);

  for (const controller of opened.splice(0)) controller.abort();
  await expect.poll(async () => (await open(a)).status, { timeout: 60_000 }).toBe(200);
  for (const controller of opened.splice(0)) controller.abort();
});

test("a server that stops ends the streams at once", async () => {
  const answer = await open(await cookieOf("b"));
  const ended = answer.text();
  await service.close();
  expect(await ended).toContain("event: parts");
});
