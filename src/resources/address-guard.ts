/**
 * Keeps webhooks, and deliveries to buckets of clients, out of the private network. The people who choose the addresses
 * may not have access to everything that this machine can reach: metadata services, databases, the upstreams themselves.
 *
 * The guard checks the addresses of each connection, never only the URL. A name is resolved once, and the connection
 * goes to the checked address. So a name that changes between check and connection gains nothing. Only public unicast
 * addresses pass. An address that contains another one (mapped, NAT64, 6to4, Teredo) is always refused.
 */
import { isIP, type LookupFunction } from "node:net";
import ipaddr from "ipaddr.js";
import { lookupOnce, type Resolve } from "./name-lookup.ts";

export class AddressRefused extends Error {
  override readonly name = "AddressRefused";
}

/** The addresses that a refusal names. A name may have thousands, and each attempt is a line in the log. */
const MAX_NAMED = 3;

interface GuardOptions {
  readonly setting: string;
  readonly resolve?: Resolve;
  readonly resolveOthers?: Resolve;
}

export class AddressGuard {
  #allowed: ReadonlySet<string> = new Set();
  readonly #resolve: Resolve;
  readonly #resolveOthers: Resolve;
  readonly #setting: string;

  /**
   * `allowedHosts` are the names and addresses that may be private. `setting` is the name of their list. `resolveOthers` finds
   * the names that are not in it.
   */
  constructor(
    allowedHosts: readonly string[],
    { setting, resolve = lookupOnce, resolveOthers = resolve }: GuardOptions,
  ) {
    this.#setting = setting;
    this.#resolve = resolve;
    this.#resolveOthers = resolveOthers;
    this.allow(allowedHosts);
  }

  /** Replaces the hosts that may be private, from the next connection on. */
  allow(hosts: readonly string[]): void {
    this.#allowed = new Set(hosts.map(canonical));
  }

  /** Returns the refusal of a URL's host; null for an allowed host, and for a name, which {@link lookup} checks. */
  refusalOf(host: string): AddressRefused | null {
    return isIP(host) === 0 || this.#isOpen(host, host) ? null : this.#refusal(host, [host]);
  }

  /** Replaces `dns.lookup`, and finds only addresses to which a connection is allowed. */
  readonly lookup: LookupFunction = (hostname, options, callback) => {
    const isAllowed = this.#allowed.has(canonical(hostname));
    const resolve = isAllowed ? this.#resolve : this.#resolveOthers;
    resolve(hostname, { ...options, all: true }, (error, found) => {
      if (error !== null) return callback(error, []);
      const open = found.filter(({ address }) => this.#isOpen(hostname, address));
      const [first] = open;
      if (first === undefined) {
        const addresses = found.map(({ address }) => address);
        return callback(this.#refusal(hostname, addresses), []);
      }
      if (options.all === true) callback(null, open);
      else callback(null, first.address, first.family);
    });
  };

  #refusal(host: string, addresses: readonly string[]): AddressRefused {
    const named = addresses
      .slice(0, MAX_NAMED)
      .map((address) => `${address} (${rangeOf(address)})`);
    const moreCount = addresses.length - named.length;
    const found = named.join(", ") + (moreCount > 0 ? ` and ${moreCount} more` : "");
    const others = found === "" ? "" : `, only ${found}`;
    return new AddressRefused(
      `${host} has no public address${others}, and is not in ${this.#setting}`,
    );
  }

  #isOpen(host: string, address: string): boolean {
    return (
      this.#allowed.has(canonical(host)) ||
      this.#allowed.has(canonical(address)) ||
      rangeOf(address) === "unicast"
    );
  }
}

/** All allocated IPv6 addresses. Below them lie old forms that still contain IPv4, such as `::127.0.0.1`. */
const GLOBAL_IPV6 = ipaddr.IPv6.parseCIDR("2000::/3");

/** A machine of Azure reaches the agent of its host there. No other machine does, although the network is a public one. */
const AGENT_OF_AZURE = "168.63.129.16";

function rangeOf(address: string): string {
  if (!ipaddr.isValid(address)) return "not an address";
  const parsed = ipaddr.parse(address);
  if (parsed.toString() === AGENT_OF_AZURE) return "agent of the host";
  const range = parsed.range();
  const isStray = parsed.kind() === "ipv6" && range === "unicast" && !parsed.match(GLOBAL_IPV6);
  return isStray ? "reserved" : range;
}

/** Returns one spelling for each address and name. */
function canonical(host: string): string {
  const bare = host.replace(/^\[(.*)\]$/, "$1");
  return ipaddr.isValid(bare)
    ? ipaddr.parse(bare).toNormalizedString()
    : bare.toLowerCase().replace(/\.$/, "");
}
