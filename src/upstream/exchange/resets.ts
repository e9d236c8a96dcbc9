/**
 * Tells the reset of a connection from its end. Both end an answer that has neither a length nor chunks, but only what comes
 * before an end is whole (RFC 9112, section 8). undici takes a reset for an end, unless it has another code.
 */
import { preparing } from "../../resources/reading-time.ts";

const CODE = "ECONNRESET";
/** The code of a reset here. */
export const RESET = "ERR_RESET";

/**
 * Makes what connects undici return connections whose resets are failures. undici listens from its callback on, so it sees the
 * code that is set here.
 */
export const failingOnReset = preparing((socket) => void socket.on("error", rename));

function rename(error: NodeJS.ErrnoException): void {
  if (error.code === CODE) error.code = RESET;
}

export const isReset = (error: Error): boolean => (error as NodeJS.ErrnoException).code === RESET;
