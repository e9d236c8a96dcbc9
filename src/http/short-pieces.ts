/**
 * Joins the short pieces of a request body, and spreads many of them over turns of the event loop.
 *
 * HTTP allows a chunk for each byte. Node makes an object of some 300 bytes of each, and 11,000 calls of one read of 64 KiB.
 * Eight uploads of 2 MB took 4.5 GB and kept the event loop for 1.4 s at a time. The pieces of one read are therefore passed
 * on as one, and a body of many pieces is read on when it gets time (`resources/time-slice.ts`).
 *
 * It replaces `push`, through which Node's parser passes each piece, because every later place is behind the cost. A false
 * result makes Node stop reading until the body is read on.
 */
import type { IncomingMessage } from "node:http";
import { timeForMore } from "../resources/time-slice.ts";
import { Gathered } from "../text/gathered.ts";

/** A piece of this length costs little beside its bytes. Common clients send longer ones. */
const SHORT_BYTES = 4 * 1024;
/** So many short pieces take some 0.6 ms. */
const PIECES_PER_STEP = 512;

/** `onPiece` is called for each short piece: whether Node reads on after it. */
export function joinShortPieces(
  incoming: IncomingMessage,
  onPiece: (readsOn: boolean) => void,
): void {
  // Without chunks, the pieces are those in which the bytes come from the network.
  if (incoming.headers["transfer-encoding"] === undefined) return;
  // Node drops the body of a request that was never read before it comes here.
  incoming.read(0);
  const push = incoming.push.bind(incoming);
  const gathered = new Gathered();
  let shortCount = 0;
  let hasMoment = false;
  let isWaiting = false;

  const passOn = (): boolean => {
    isWaiting = false;
    if (gathered.length === 0 || incoming.destroyed) return true;
    return push(gathered.take());
  };
  const atNextTurn = () => {
    hasMoment = false;
    if (!isWaiting) passOn();
  };
  incoming.push = (piece: Buffer | null): boolean => {
    if (piece === null) {
      passOn();
      return push(null);
    }
    if (piece.length >= SHORT_BYTES && !isWaiting) {
      passOn();
      return push(piece);
    }
    gathered.add(piece);
    shortCount++;
    const wait = shortCount % PIECES_PER_STEP === 0 && !isWaiting ? timeForMore() : null;
    if (wait !== null) {
      isWaiting = true;
      void wait.then(passOn);
    } else if (!isWaiting && !hasMoment) {
      hasMoment = true;
      setImmediate(atNextTurn);
    }
    const { readableLength, readableHighWaterMark } = incoming;
    const readsOn = !isWaiting && gathered.length + readableLength < readableHighWaterMark;
    onPiece(readsOn);
    return readsOn;
  };
}
