/**
 * Asks PostgreSQL to end a statement that its caller has stopped to wait for. Without this the statement would run on
 * beside its repetition by the caller, on a server that is too slow already.
 *
 * A `statement_timeout` would do the same, but it is state of a connection, which poolers in transaction mode refuse or
 * give to others. They pass this request on.
 */
import { connect } from "node:net";
import type { PoolClient } from "./drizzle.ts";

/** The code that stands in the place of a protocol version. */
const CANCEL_CODE = 80_877_102;
const REQUEST_BYTES = 16;
const TIMEOUT_MS = 5_000;

/** The driver has what the server said about the connection, but its types do not. */
interface Connected {
  readonly processID?: number | null;
  readonly secretKey?: number | null;
}

/** Returns at once, because the server sends no answer. */
export function cancelStatement(client: PoolClient): void {
  const { processID, secretKey } = client as Connected;
  if (typeof processID !== "number" || typeof secretKey !== "number") return;
  const request = Buffer.alloc(REQUEST_BYTES);
  for (const [i, word] of [REQUEST_BYTES, CANCEL_CODE, processID, secretKey].entries()) {
    request.writeInt32BE(word, i * 4);
  }
  const { host, port } = client;
  const socket = host.startsWith("/")
    ? connect(`${host}/.s.PGSQL.${port}`)
    : connect({ host, port });
  // The server may be away altogether. Then the statement ends with it.
  socket.on("error", () => {}).setTimeout(TIMEOUT_MS, () => socket.destroy());
  socket.end(request).unref();
}
