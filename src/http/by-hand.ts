/**
 * Answers what never reaches the app: requests that are no HTTP, or name no address. Each gets the usual error envelope with an
 * id, like any other.
 */
import { type IncomingMessage, maxHeaderSize, type ServerResponse, STATUS_CODES } from "node:http";
import type { Duplex } from "node:stream";
import { CATALOGUE, PublicError } from "../errors.ts";
import { envelopeOf, retryHeadersOf } from "./errors.ts";
import { JSON_TYPE, toAsciiJson } from "./json.ts";
import { newRequestId } from "./track.ts";

const UNROUTABLE = "Invalid URL or Host header.";
const NOT_HTTP = "The request is not valid HTTP.";
const unroutableHeaders = () => ({ ...JSON_TYPE, "x-request-id": newRequestId() });

/**
 * Returns what is wrong with the head of a request that Node has taken; null for a good one. HTTP/1.1 requires a `Host`. HTTP/1.0,
 * which some health checks use, does not. With two of them, or a body that is framed in another way than by a length or as chunked
 * of HTTP/1.1, a proxy in front may see another host or another end, and take the rest for a request (RFC 9112, 3.2 and 6.1).
 */
export function faultOfHead({
  httpVersion,
  headers,
  headersDistinct,
}: IncomingMessage): string | null {
  const hostCount = headersDistinct["host"]?.length ?? 0;
  if (hostCount > 1 || (hostCount === 0 && httpVersion !== "1.0")) return UNROUTABLE;
  const coding = headers["transfer-encoding"];
  if (coding === undefined) return null;
  return httpVersion === "1.1" && coding.toLowerCase() === "chunked" ? null : NOT_HTTP;
}

/** Refuses a request with such a fault. What comes behind it on its connection is not read. */
export function answerFault(outgoing: ServerResponse, fault: string): void {
  const body = toAsciiJson(envelopeOf(new PublicError("invalid_request", fault)));
  const headers = { ...unroutableHeaders(), "content-length": body.length, connection: "close" };
  outgoing.writeHead(400, headers).end(body);
}

/** Answers a request whose line or `Host` makes no URL. It never reaches the app. */
export function answerUnroutable(cause: unknown): Response {
  const error = new PublicError("invalid_request", UNROUTABLE, { cause });
  const headers = unroutableHeaders();
  return new Response(toAsciiJson(envelopeOf(error)), { status: 400, headers });
}

/** Makes the error for a request that Node could not parse. */
export function malformedRequest(code: string | undefined): PublicError {
  switch (code) {
    case "HPE_HEADER_OVERFLOW":
      return new PublicError(
        "headers_too_large",
        `The address and the headers of the request are larger than the ${maxHeaderSize} bytes allowed.`,
      );
    case "ERR_HTTP_REQUEST_TIMEOUT":
      return new PublicError("request_timeout", "The request did not arrive in time.");
    default:
      return new PublicError("invalid_request", NOT_HTTP);
  }
}

/** Answers where Node makes no response object. */
export function answerByHand(socket: Duplex, error: PublicError): void {
  const { status } = CATALOGUE[error.error];
  const body = toAsciiJson(envelopeOf(error));
  socket.end(
    [
      `HTTP/1.1 ${status} ${STATUS_CODES[status]}`,
      `Content-Type: ${JSON_TYPE["content-type"]}`,
      `Content-Length: ${body.length}`,
      `x-request-id: ${newRequestId()}`,
      ...retryHeadersOf(error).map(([name, value]) => `${name}: ${value}`),
      "Connection: close",
      "",
      body,
    ].join("\r\n"),
  );
}
