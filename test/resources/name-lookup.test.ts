/** The system looks few names up at a time, so the lines of one upstream must not take all of it. */
import dns from "node:dns";
import { syncBuiltinESMExports } from "node:module";
import { expect, onTestFinished, test } from "vitest";
import { clientOf, send } from "../support/client.ts";
import { startUpstream } from "../support/upstream.ts";

/** Holds the lookups of a name until they are answered. */
function holdLookups() {
  const { lookup } = dns;
  const held: (() => void)[] = [];
  const holding = (host: string, ...rest: unknown[]) =>
    held.push(() => Reflect.apply(lookup, dns, [host, ...rest]));
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
