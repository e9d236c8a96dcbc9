/** The web page of a fleet: any of its servers shows all of it, and a person signs in once. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { UpstreamList, UpstreamObject } from "../../src/contract/upstream.ts";
import { sharePostgres } from "../support/postgres.ts";
import { type ProjectServers, startProjectServers } from "../support/projects.ts";
import { signIn } from "../support/sign-in.ts";

const OPERATOR = "key-of-the-operator";
const postgres = await sharePostgres("the web page of a fleet");
const as = (key: string) => ({ authorization: `Bearer ${key}` });

describe.skipIf(postgres === null)("on two servers", () => {
  let servers: ProjectServers;
  const at = (server: number) => servers.urls[server] ?? "";

  beforeAll(async () => {
    const keys = [{ name: "operator", key: OPERATOR, scopes: ["admin", "read", "interactive"] }];
    servers = await startProjectServers(postgres, { auth: { keys } });
  });
  afterAll(async () => {
    await servers?.[Symbol.asyncDispose]();
    await postgres?.[Symbol.asyncDispose]();
  });

  const open = (server: number, path: string, cookie: string) =>
    fetch(at(server) + path, {
      headers: { accept: "text/html", "sec-fetch-site": "same-origin", cookie },
    });

  test("one cookie opens both, and ends on both when its key is revoked", async () => {
    const made = await fetch(`${at(0)}/v1/admin/keys`, {
      method: "POST",
      headers: as(OPERATOR),
      body: JSON.stringify({ name: "guest", project: "search", scopes: ["read"] }),
    });
    const { id, key } = (await made.json()) as { id: string; key: string };
    const cookie = await signIn(at(0), key);
    await expect.poll(async () => (await open(1, "/", cookie)).status).toBe(200);
    expect((await open(0, "/", cookie)).status).toBe(200);
    const events = await Promise.all([open(0, "/web/live", cookie), open(1, "/web/live", cookie)]);
    expect(events.map(({ status }) => status)).toEqual([200, 200]);

    await fetch(`${at(1)}/v1/admin/keys/${id}`, { method: "DELETE", headers: as(OPERATOR) });
    for (const server of [0, 1]) {
      await expect.poll(async () => (await open(server, "/", cookie)).status).toBe(401);
    }
    // The open pages are told, and their streams end.
    for (const text of await Promise.all(events.map((each) => each.text()))) {
      expect(text.slice(text.lastIndexOf("event:"))).toMatch(/^event: reload\n/);
    }
  });

  test("each shows the requests that both have in flight", async () => {
    servers.upstream.hold();
    const chats = [0, 1, 1].map((server) =>
      fetch(`${at(server)}/v1/chat/completions`, {
        method: "POST",
        headers: as(OPERATOR),
        body: JSON.stringify({ model: "m", messages: [{ role: "user", content: "Hello" }] }),
      }),
    );
    const read = async (server: number): Promise<UpstreamObject | undefined> => {
      const answer = await fetch(`${at(server)}/v1/admin/upstreams`, { headers: as(OPERATOR) });
      return ((await answer.json()) as UpstreamList).data[0];
    };
    const inFlight = { batch: 0, interactive: 3 };
    for (const server of [0, 1]) {
      await expect
        .poll(() => read(server))
        .toMatchObject({ name: "only", servers: 2, in_flight: inFlight });
    }
    const cookie = await signIn(at(1), OPERATOR);
    const page = await (await open(0, "/upstreams", cookie)).text();
    expect(page).toContain('data-values="[3,');
    servers.upstream.release();
    for (const chat of chats) expect((await chat).status).toBe(200);
    for (const server of [0, 1]) {
      await expect
        .poll(() => read(server))
        .toMatchObject({ attempts: { answered: 3, failed: 0 }, in_flight: { interactive: 0 } });
    }
  });
});
