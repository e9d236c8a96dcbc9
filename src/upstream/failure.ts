/** Why there was no HTTP answer, in words that a client may read: no addresses of ours, no credentials. */

const WORDS: Readonly<Record<string, string>> = {
  ECONNREFUSED: "connection refused",
  ECONNRESET: "connection reset",
  EPIPE: "connection closed while the request was being sent",
  ENOTFOUND: "unknown host",
  EAI_AGAIN: "the host name could not be resolved",
  EHOSTUNREACH: "no route to the host",
  ENETUNREACH: "no route to the host's network",
  ETIMEDOUT: "no connection in time",
  EPROTO: "TLS failed",
  EMFILE: "batchd has too many files open",
  UND_ERR_CONNECT_TIMEOUT: "no connection in time",
  UND_ERR_SOCKET: "connection closed before the answer was complete",
  UND_ERR_RES_CONTENT_LENGTH_MISMATCH: "the answer does not have the length that it announced",
  UND_ERR_HEADERS_OVERFLOW: "the headers of the answer are too long",
};

/** undici's parser errors have a name, and not always a code. */
const isHttpError = (error: Error) => error.name === "HTTPParserError";
const isCertificateError = (code: string) =>
  code.startsWith("ERR_TLS_") || code.startsWith("ERR_SSL_") || code.includes("CERT");

export function describeFailure(error: Error): string {
  if (isHttpError(error)) return "the answer is not HTTP";
  const code = codeOf(error);
  if (code === null) return error.message || error.name;
  if (WORDS[code] !== undefined) return WORDS[code];
  if (isCertificateError(code)) return `TLS failed (${code})`;
  return error.message === "" ? code : `${error.message} (${code})`;
}

/** A connection that was tried over IPv6 and IPv4 fails with an AggregateError, which has a code too. */
function codeOf(error: Error): string | null {
  const { code } = error as NodeJS.ErrnoException;
  return typeof code === "string" ? code : null;
}
