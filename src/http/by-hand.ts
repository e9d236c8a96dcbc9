/**
 * Answers what never reaches the app: requests that are no HTTP, or name no address. Each gets the usual error envelope with an
 * id, like any other.
 */
import { type IncomingMessage, type ServerResponse, STATUS_CODES } from "node:http";
import type { Duplex } from "node:stream";
import { CATALOGUE, PublicError } from "../errors.ts";
import { envelopeOf, retryHeadersOf } from "./errors.ts";
import { JSON_TYPE, toAsciiJson } from "./json.ts";
import { newRequestId } from "./track.ts";

/** HTTP/1.1 requires a `Host`. HTTP/1.0, which some health checks use, does not. */
export const lacksHost = ({ httpVersion, headers }: IncomingMessage) =>
  httpVersion === "1.1" && headers.host === undefined;

const UNROUTABLE = "Invalid URL or Host header.";
const unroutableHeaders = () => ({ ...JSON_TYPE, "x-request-id": newRequestId() });

export function answerHostless(outgoing: ServerResponse): void {
  const body = toAsciiJson(envelopeOf(new PublicError("invalid_request", UNROUTABLE)));
  outgoing.writeHead(400, { ...unroutableHeaders(), "content-length": body.length }).end(body);
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
      return new PublicError("headers_too_large", "The headers of the request are too large.");
    case "ERR_HTTP_REQUEST_TIMEOUT":
      return new PublicError("request_timeout", "The request did not arrive in time.");
    default:
      return new PublicError("invalid_request", "The request is not valid HTTP.");
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
