/**
 * Says why there was no HTTP answer, in words that a client may read. They must hold no internal addresses and no
 * credentials.
 */
import { INTERRUPTED, type Outcome } from "../../batch/outcome.ts";
import type { Redactor } from "../../redactor.ts";
import { RESET } from "./resets.ts";

/** An address with https in place of http. */
const NO_TLS = "TLS failed: the server answers without it";

const WORDS: Readonly<Record<string, string>> = {
  ECONNREFUSED: "connection refused",
  ECONNRESET: "connection reset",
  [RESET]: "connection reset",
  EPIPE: "connection closed while the request was being sent",
  ENOTFOUND: "unknown host",
  EAI_AGAIN: "the host name could not be resolved",
  EHOSTUNREACH: "no route to the host",
  ENETUNREACH: "no route to the host's network",
  ETIMEDOUT: "no connection in time",
  EADDRNOTAVAIL: "batchd has no free address or port to connect from",
  EPROTO: "TLS failed",
  ERR_SSL_WRONG_VERSION_NUMBER: NO_TLS,
  ERR_SSL_PACKET_LENGTH_TOO_LONG: NO_TLS,
  ERR_ASSERTION: "the answer is not HTTP",
  EMFILE: "batchd has too many files open",
  UND_ERR_CONNECT_TIMEOUT: "no connection in time",
  UND_ERR_SOCKET: "connection closed before the answer was complete",
  // undici says so of everything that is wrong behind the length, such as a sign that no header may have.
  UND_ERR_RES_CONTENT_LENGTH_MISMATCH: "the answer is not HTTP, or not as long as it announced",
  UND_ERR_HEADERS_OVERFLOW: "the headers of the answer are too long",
  UND_ERR_PRX_CONN: "the proxy closed the connection",
  UND_ERR_PRX_TLS: "TLS with the proxy failed",
};

/** The parser errors of undici have a name, but not always a code. */
const isHttpError = (error: Error) => error.name === "HTTPParserError";
/** The codes of Node.js and OpenSSL, some of which do not name the certificate. */
const CERTIFICATE_CODE =
  /^(?:ERR_(?:TLS|SSL)_|UNABLE_TO_|INVALID_(?:CA|PURPOSE)$|PATH_LENGTH_EXCEEDED$|HOSTNAME_MISMATCH$)|CERT|CRL/;

/** undici reports a refusal by a proxy in words only. */
const REFUSED_BY_PROXY = /^Proxy (?:Authentication Required|response) \((\d+)\)/;

type Failure = Extract<Outcome, { kind: "unreachable" | "broken" | "interrupted" }>;

/** `isSent` is true when a connection took the request. Without one the target never saw it. */
export function failureOf(error: Error, { isSent }: { readonly isSent: boolean }): Failure {
  const code = codeOf(error);
  if (code === "UND_ERR_DESTROYED" || code === "UND_ERR_CLOSED") return INTERRUPTED;
  const refusal = REFUSED_BY_PROXY.exec(error.message)?.[1];
  if (refusal !== undefined) {
    return { kind: "unreachable", detail: `the proxy refused with status ${refusal}` };
  }
  return { kind: isSent ? "broken" : "unreachable", detail: describeFailure(error) };
}

/** A server may echo what it was sent. */
export function withoutSecrets<T extends Outcome>(outcome: T, redactor: Redactor): T {
  if (!("detail" in outcome)) return outcome;
  return { ...outcome, detail: redactor.text(outcome.detail) };
}

function describeFailure(error: Error): string {
  if (isHttpError(error)) return "the answer is not HTTP";
  const code = codeOf(error);
  if (code === null) return "the exchange failed";
  if (WORDS[code] !== undefined) return WORDS[code];
  if (CERTIFICATE_CODE.test(code)) return `TLS failed (${code})`;
  // The system's own words name the address.
  return `the exchange failed (${code})`;
}

/**
 * Returns the code of an error. A connection tried over IPv6 and IPv4 fails with an AggregateError, which has a code
 * too.
 */
function codeOf(error: Error): string | null {
  const { code } = error as NodeJS.ErrnoException;
  return typeof code === "string" ? code : null;
}
