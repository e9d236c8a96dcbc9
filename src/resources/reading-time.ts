/**
 * Bounds the time for which answers are read within one turn of the event loop.
 *
 * A server may send an answer of a megabyte byte by byte, or heads and interim answers without end. Each read of 64 KiB then
 * takes up to 30 ms, and each of hundreds of connections may have one in every turn. A connection that finds no time left is
 * read on in the next turn. Its bytes wait in the system meanwhile, which slows the server down.
 */
import type { Socket } from "node:net";
import { systemClock } from "../clock.ts";
import { skipInterimOn } from "./interim.ts";
import { TurnBudget } from "./turn-budget.ts";

/** The time of a turn: several times what hundreds of usual answers take, since a turn has a price of its own. */
const READING_MS = 16;
/** The bytes between two looks at the time. */
const STEP_BYTES = 8 * 1024;

/** All connections of the process share the time. */
const turn = new TurnBudget(systemClock, READING_MS);

type Connected = (...result: [error: null, socket: Socket] | [error: Error, socket: null]) => void;
type Connect<Options> = (options: Options, callback: Connected) => void;

/** Makes what connects undici prepare each connection before undici has it. */
export const preparing =
  (prepare: (socket: Socket) => void) =>
  <Options>(connect: Connect<Options>): Connect<Options> =>
  (options, callback) =>
    connect(options, (...result) => {
      const [error, socket] = result;
      // undici leaves the socket out with an error.
      if (error === null) prepare(socket);
      callback(...result);
    });

/** Makes what connects undici return connections whose answers may come at any speed, and behind interim ones. */
export const readingAnswers = preparing((socket) => {
  readInTurns(socket);
  skipInterimOn(socket);
});

function readInTurns(socket: Socket): void {
  const read = socket.read.bind(socket);
  // undici reads at this event until nothing is left.
  const readOn = () => void (socket.destroyed || socket.emit("readable"));
  socket.read = (size?: number) => {
    // Node itself asks for a size.
    if (size !== undefined) return read(size);
    // undici reads on after it has given a connection up.
    if (socket.destroyed || !turn.hasTime(readOn)) return null;
    return socket.readableLength > STEP_BYTES ? read(STEP_BYTES) : read();
  };
}
