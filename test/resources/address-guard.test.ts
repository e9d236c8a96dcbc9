import type { LookupAddress } from "node:dns";
import { isIPv6 } from "node:net";
import { expect, test } from "vitest";
import { AddressGuard } from "../../src/resources/address-guard.ts";
import type { Resolve } from "../../src/resources/name-lookup.ts";

const setting = "webhooks.allow_private_hosts";

const leadsTo =
  (...addresses: readonly string[]): Resolve =>
  (_host, _options, callback) =>
    callback(
      null,
      addresses.map((address) => ({ address, family: isIPv6(address) ? 6 : 4 })),
    );

/** The addresses that a connection to the host would try, or why there are none. */
function looked(guard: AddressGuard, host: string): Promise<string[]> {
  const { promise, resolve, reject } = Promise.withResolvers<string[]>();
  guard.lookup(host, { all: true }, (error, found) => {
    if (error !== null) reject(error);
    else resolve((found as LookupAddress[]).map(({ address }) => address));
  });
  return promise;
}

test.each([
  "0.0.0.0",
  "0.1.2.3",
  "10.0.0.1",
  "100.64.0.1",
  "127.0.0.1",
  "127.255.255.254",
  "168.63.129.16",
  "169.254.169.254",
  "172.16.0.1",
  "172.31.255.255",
  "192.0.0.8",
  "192.0.2.1",
  "192.168.1.1",
  "198.18.0.1",
  "198.51.100.1",
  "203.0.113.1",
  "224.0.0.1",
  "240.0.0.1",
  "255.255.255.255",
  "::",
  "::1",
  "::7f00:1",
  "::ffff:127.0.0.1",
  "::ffff:8.8.8.8",
  "::ffff:0:7f00:1",
  "64:ff9b::a00:1",
  "64:ff9b:1::a00:1",
  "100::1",
  "2001::1",
  "2001:db8::1",
  "2002:a00:1::1",
  "fc00::1",
  "fd12:3456::1",
  "fe80::1",
  "fe80::1%eth0",
  "fec0::1",
  "ff02::1",
  "not an address",
])("%s is refused, in a URL and behind a name", async (address) => {
  const guard = new AddressGuard([], { setting, resolve: leadsTo(address) });
  if (!address.includes(" ")) {
    expect(guard.refusalOf(address)?.message).toContain("has no public address");
  }
  await expect(looked(guard, "hook.example")).rejects.toThrow(`hook.example has no public address`);
});

test.each([
  "8.8.8.8",
  "168.63.129.17",
  "172.32.0.1",
  "100.128.0.1",
  "2606:4700::1111",
  "2a00:1450:4001::1",
])("%s is public", async (address) => {
  const guard = new AddressGuard([], { setting, resolve: leadsTo(address) });
  expect(guard.refusalOf(address)).toBeNull();
  expect(await looked(guard, "hook.example")).toEqual([address]);
});

test("of the addresses of a name only the public ones are tried", async () => {
  const guard = new AddressGuard([], {
    setting,
    resolve: leadsTo("10.0.0.1", "8.8.8.8", "::1", "2606:4700::1111"),
  });
  expect(await looked(guard, "hook.example")).toEqual(["8.8.8.8", "2606:4700::1111"]);
});

test("a refusal stays short for a name with thousands of addresses", async () => {
  const addresses = Array.from({ length: 4_000 }, (_, at) => `10.0.${at >> 8}.${at & 255}`);
  const guard = new AddressGuard([], { setting, resolve: leadsTo(...addresses) });
  await expect(looked(guard, "hook.example")).rejects.toThrow(
    "only 10.0.0.0 (private), 10.0.0.1 (private), 10.0.0.2 (private) and 3997 more, and is not in",
  );
});

test("a name that led to a public address is checked again the next time", async () => {
  const answers = [["8.8.8.8"], ["10.0.0.1"]];
  const guard = new AddressGuard([], {
    setting,
    resolve: (...asked) => leadsTo(...answers.shift()!)(...asked),
  });
  expect(await looked(guard, "hook.example")).toEqual(["8.8.8.8"]);
  await expect(looked(guard, "hook.example")).rejects.toThrow("10.0.0.1 (private)");
});

test("one address is found where one is asked for", () => {
  const guard = new AddressGuard([], { setting, resolve: leadsTo("10.0.0.1", "8.8.8.8") });
  const found: unknown[] = [];
  guard.lookup("hook.example", {}, (...answer) => found.push(...answer));
  expect(found).toEqual([null, "8.8.8.8", 4]);
});

test("an allowed name may lead anywhere, however it is spelt; others may not", async () => {
  const guard = new AddressGuard(["Hooks.Internal"], { setting, resolve: leadsTo("10.0.0.1") });
  expect(await looked(guard, "hooks.internal")).toEqual(["10.0.0.1"]);
  expect(await looked(guard, "hooks.internal.")).toEqual(["10.0.0.1"]);
  await expect(looked(guard, "other.internal")).rejects.toThrow();
  await expect(looked(guard, "sub.hooks.internal")).rejects.toThrow();
  expect(guard.refusalOf("10.0.0.1")).not.toBeNull();
});

test("an allowed address is open in a URL and behind any name, however it is spelt; others are not", async () => {
  const guard = new AddressGuard(["10.0.0.1", "[FD00:0::1]"], {
    setting,
    resolve: leadsTo("10.0.0.1", "10.0.0.2", "fd00::1"),
  });
  expect(guard.refusalOf("10.0.0.1")).toBeNull();
  expect(guard.refusalOf("fd00:0:0::1")).toBeNull();
  expect(guard.refusalOf("fd00::2")).not.toBeNull();
  expect(await looked(guard, "hook.example")).toEqual(["10.0.0.1", "fd00::1"]);
});
