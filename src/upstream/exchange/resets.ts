/**
 * Tells the reset of a connection from its end. Both end an answer that has neither a length nor chunks, but only what comes
 * before an end is whole (RFC 9112, section 8). undici takes a reset for an end, unless it has another code.
 */
import type { Socket } from "node:net";

const CODE = "ECONNRESET";
/** The code of a reset here. */
export const RESET = "ERR_RESET";

type Connected = (...result: [error: null, socket: Socket] | [error: Error, socket: null]) => void;

/** Makes what connects undici return connections whose resets are failures. */
export const failingOnReset =
  <Options>(connect: (options: Options, callback: Connected) => void) =>
  (options: Options, callback: Connected): void =>
    connect(options, (...result) => {
      // undici listens from the callback on, so it sees the code that is set here.
      result[1]?.on("error", rename);
      callback(...result);
    });

function rename(error: NodeJS.ErrnoException): void {
  if (error.code === CODE) error.code = RESET;
}

export const isReset = (error: Error): boolean => (error as NodeJS.ErrnoException).code === RESET;
