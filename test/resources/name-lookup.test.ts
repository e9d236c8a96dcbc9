/**
 * The system looks few names up at a time, so the lines of one upstream or the deliveries of one client must not take all
 * of it.
 */
import { createSocket } from "node:dgram";
import dns from "node:dns";
import { syncBuiltinESMExports } from "node:module";
import { expect, onTestFinished, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { Locations } from "../../src/locations/locations.ts";
import { AddressGuard } from "../../src/resources/address-guard.ts";
import { lookupInDns } from "../../src/resources/name-lookup.ts";
import { clientOf, send } from "../support/client.ts";
import { aCall, aParcel } from "../support/parcels.ts";
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

/** An alias of a name without an address, in place of an address. */
const ALIAS = "alias";
/** Nothing, in place of an address: the name server says that there is no such name. */
const NO_NAME = "no name";

/** A name server that knows the address of some names, and is silent about all others. */
async function startNameServer(known: Readonly<Record<string, string>>) {
  const server = createSocket("udp4");
  server.on("message", (asked, { port }) => {
    const end = asked.indexOf(0, 12);
    const labels = asked.toString("latin1", 13, end);
    const name = labels.replace(/[^a-z0-9-]/g, ".");
    const address = known[name];
    if (address === undefined) return;
    const question = asked.subarray(12, end + 5);
    const isAnswered = address === ALIAS || (address !== NO_NAME && question.at(-3) === 1);
    const header = Buffer.from(asked.subarray(0, 12));
    const code = address === NO_NAME ? 0x83 : 0x80;
    header.set([0x81, code, 0, 1, 0, isAnswered ? 1 : 0, 0, 0, 0, 0], 2);
    const found = address === ALIAS ? [1, 0x78, 0] : address.split(".").map(Number);
    const type = address === ALIAS ? 5 : 1;
    const record = [0xc0, 12, 0, type, 0, 1, 0, 0, 0, 60, 0, found.length, ...found];
    server.send(Buffer.concat([header, question, Buffer.from(isAnswered ? record : [])]), port);
  });
  const { promise, resolve } = Promise.withResolvers<void>();
  server.bind(0, "127.0.0.1", resolve);
  await promise;
  const { resolve4 } = dns.Resolver.prototype;
  const at = [`127.0.0.1:${server.address().port}`];
  const asking = function (this: dns.Resolver, ...args: unknown[]) {
    this.setServers(at);
    Reflect.apply(resolve4, this, args);
  };
  dns.Resolver.prototype.resolve4 = asking as unknown as typeof resolve4;
  onTestFinished(() => {
    dns.Resolver.prototype.resolve4 = resolve4;
    server.close();
  });
}

test("a name that a client chooses is found while the servers of many others are silent", async () => {
  await startNameServer({ "bucket.example": "192.0.2.1" });
  const held = holdLookups();
  const find = (host: string) =>
    new Promise((resolve) => {
      lookupInDns(host, { all: true }, (error, found) => resolve(error?.code ?? found));
    });
  const silent = Array.from({ length: 40 }, (_, n) => find(`silent-${n}.example`));
  const first = await Promise.race([...silent, find("bucket.example")]);
  expect(first).toEqual([{ address: "192.0.2.1", family: 4 }]);
  expect(new Set(await Promise.all(silent))).toEqual(new Set(["ETIMEOUT"]));
  // No thread of the process has waited for any of them.
  expect(held).toHaveLength(0);
});

test("a client does not learn which names of the private network there are", async () => {
  const names = {
    "vault.internal": "10.0.0.1",
    "alias.internal": ALIAS,
    "vauld.internal": NO_NAME,
  };
  await startNameServer(names);
  const guard = new AddressGuard([], {
    setting: "allow_private_hosts",
    resolveOthers: lookupInDns,
  });
  const locations = new Locations([], { clock: systemClock, workFolder: "/none", environment: {} });
  const bucket = {
    bucket: "b",
    prefix: "",
    region: "us-east-1",
    forcePathStyle: true,
    accessKeyId: "id",
    secretAccessKey: "a-secret-of-a-client",
    sessionToken: null,
  };
  const messages = Object.keys(names).map(async (name) => {
    const location = locations.ofClient({ ...bucket, endpoint: `http://${name}` }, guard);
    const delivered = location.deliver(aParcel(), aCall());
    return delivered.then(String, ({ message }: Error) => message);
  });
  expect(new Set(await Promise.all(messages))).toEqual(
    new Set([expect.stringContaining("the server is not known, or not at a public address")]),
  );
});
