/** The system looks few names up at a time, so the lines of one upstream or the deliveries of one client must not take all of it. */
import dns from "node:dns";
import { syncBuiltinESMExports } from "node:module";
import { expect, onTestFinished, test } from "vitest";
import { lookupForClients } from "../../src/resources/name-lookup.ts";
import { clientOf, send } from "../support/client.ts";
import { startUpstream } from "../support/upstream.ts";

/** Holds the lookups of a name until they are answered. */
function holdLookups() {
  const { lookup } = dns;
  const held: (() => void)[] = [];
  const holding = (...args: unknown[]) => held.push(() => Reflect.apply(lookup, dns, args));
  dns.lookup = holding as unknown as typeof lookup;
  syncBuiltinESMExports();
  onTestFinished(() => {
    dns.lookup = lookup;
    syncBuiltinESMExports();
  });
  return held;
}

test("the name of a target is looked up once for all lines that wait for it, and anew for later ones", async () => {
  await using upstream = await startUpstream();
  const client = clientOf(upstream.url.replace("127.0.0.1", "localhost"), { keep_alive: false });
  onTestFinished(() => client.close());
  const held = holdLookups();
  const ask = () => send(client, { body: Buffer.from('{"model":"m"}') });
  for (const count of [1, 2]) {
    const lines = [ask(), ask(), ask()];
    expect(held).toHaveLength(count);
    held[count - 1]?.();
    const outcomes = await Promise.all(lines);
    expect(outcomes.map(({ kind }) => kind)).toEqual(["answered", "answered", "answered"]);
  }
});

test("names that clients choose are looked up one at a time, in a short queue", async () => {
  const held = holdLookups();
  const find = (host: string) =>
    new Promise((resolve) => {
      lookupForClients(host, { all: true }, (error, found) => resolve(error?.code ?? found));
    });
  const local = (n: number) => `127.0.0.${n}`;
  const first = Array.from({ length: 3 }, () => find(local(1)));
  const others = Array.from({ length: 16 }, (_, n) => find(local(n + 2)));
  expect(await find(local(18))).toBe("EAI_AGAIN");
  for (let n = 1; n <= 17; n++) {
    expect(held).toHaveLength(n);
    held[n - 1]?.();
    const asking = n === 1 ? first : [others[n - 2]];
    for (const found of await Promise.all(asking)) {
      expect(found).toEqual([{ address: local(n), family: 4 }]);
    }
  }
  expect(held).toHaveLength(17);
});
