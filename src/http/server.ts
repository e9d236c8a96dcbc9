/**
 * The listening socket. It limits the time that a client may take, makes room when connections are scarce, and lets answers
 * finish before it closes.
 *
 * Uploads may be large and links slow, so there is no limit on a whole request, only on silence. An answer may be
 * complete before its request is. The server then reads and drops the rest for a while. A close at that moment would
 * reset the connection, and the client might never see the answer.
 */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { type AddressInfo, isIPv6, type Socket } from "node:net";
import type { Duplex } from "node:stream";
import { getRequestListener } from "@hono/node-server";
import type { Clock } from "../clock.ts";
import { PublicError } from "../errors.ts";
import { noteArrival } from "../resources/arrivals.ts";
import { TurnBudget } from "../resources/turn-budget.ts";
import { type Address, bind } from "./address.ts";
import type { App } from "./app.ts";
import {
  answerByHand,
  answerFault,
  answerUnroutable,
  faultOfHead,
  malformedRequest,
} from "./by-hand.ts";
import { ClientReading } from "./client-reading.ts";
import { type Answers, CLOSE_GRACE_MS, type Connections, closeServer } from "./closing.ts";
import { continuing, SILENCE_MS, whenClosed } from "./connection.ts";
import { joinShortPieces } from "./short-pieces.ts";
import { inTurn } from "./turns.ts";

/** The time for idle connections, above the poll intervals of clients and the 60 seconds of common load balancers. */
const KEEP_ALIVE_MS = 75_000;
const HEADERS_MS = 90_000;
/** Finding a late request costs Node some 15 µs, and it does not pause between two. */
const LOOK_FOR_LATE_MS = 250;
/**
 * The time of a turn in which requests begin or are refused. What most of them do then takes several times as long. Those that a
 * few clients have sent during a long turn begin together: with 2 ms here, the slowest percent took 12 ms longer.
 */
const BEGINNING_MS = 6;
const REQUEST_DRAIN_MS = 30_000;

export interface Listening {
  readonly ok: true;
  /** The address of the server, such as `http://127.0.0.1:8080`. */
  readonly url: string;
  /** Stops accepting, lets answers finish for up to `graceMs`, then cuts the rest. */
  close(graceMs?: number): Promise<void>;
}

export type ListenResult = Listening | { readonly ok: false; readonly problem: string };

export async function listen(
  app: App,
  address: Address,
  { clock, maxConnections = Number.POSITIVE_INFINITY }: ListenOptions,
): Promise<ListenResult> {
  const answers: Answers = new WeakMap();
  const turn = new TurnBudget(clock, BEGINNING_MS);
  const reading = new ClientReading(clock);
  const { listener, hasRoom } = requestListener(app, answers, {
    turn,
    reading,
    onAsked: (outgoing) => {
      if (!server.listening) outgoing.shouldKeepAlive = false;
    },
    onAnswered: (incoming) => {
      drainRequest(incoming, clock);
      if (connections.has(incoming.socket)) connections.set(incoming.socket, clock.elapsedMs());
    },
  });
  const server = createServer({
    keepAliveTimeout: KEEP_ALIVE_MS,
    headersTimeout: HEADERS_MS,
    connectionsCheckingInterval: LOOK_FOR_LATE_MS,
    requestTimeout: 0,
    // Node would refuse such a request without the error envelope.
    requireHostHeader: false,
  });
  const connections: Connections = new Map();
  let madeRoomAtMs = Number.NEGATIVE_INFINITY;
  const makeRoom = () => {
    // The function visits every connection, and there may be thousands.
    const nowMs = clock.elapsedMs();
    if (nowMs - madeRoomAtMs < MAKE_ROOM_EVERY_MS) return;
    madeRoomAtMs = nowMs;
    server.closeIdleConnections();
    closeUnused(connections, answers, nowMs);
  };
  server.on("connection", (socket) => {
    closeBehindRequest(socket, answers);
    noteArrival();
    reading.add(socket, () => hasRoom(socket));
    connections.set(socket, clock.elapsedMs());
    socket.once("close", () => connections.delete(socket));
    if (connections.size <= maxConnections) return;
    makeRoom();
    refuseConnection(socket, clock);
  });
  server.on("request", listener);
  server.on("checkContinue", continuing(listener));
  // Node would answer an expectation with a bare 417. HTTP allows a server to ignore an unknown one.
  server.on("checkExpectation", listener);
  server.timeout = SILENCE_MS;
  const refuse = (fault: NodeJS.ErrnoException, socket: Duplex) => {
    // Node finds all late requests at once, and there may be thousands.
    if (!turn.hasTime(() => refuse(fault, socket))) return;
    const answer = answers.get(socket);
    const isOwed = answer !== undefined && !answer.writableFinished;
    // What comes behind a whole request must not be answered in its place.
    const isBehind = isOwed && !answer.headersSent && answer.req.complete;
    // A second answer must not go into the middle of one in progress.
    const isAmid = isOwed && answer.headersSent;
    if (fault.code === "ECONNRESET" || !socket.writable || isAmid) socket.destroy(fault);
    else if (isBehind) whenClosed(answer, () => socket.end(() => socket.destroy()));
    else answerByHand(socket, malformedRequest(fault.code));
  };
  server.on("clientError", (fault, socket) => {
    // Node finds an error as it parses, or a late request as it looks for them.
    reading.parsed(socket as Socket);
    refuse(fault, socket);
  });
  const problem = await bind(server, address);
  if (problem !== null) return { ok: false, problem };
  const { port } = server.address() as AddressInfo;
  const host = isIPv6(address.host) ? `[${address.host}]` : address.host;
  return {
    ok: true,
    url: `http://${host}:${port}`,
    close: (graceMs = CLOSE_GRACE_MS) =>
      closeServer(server, { connections, answers, clock, graceMs }),
  };
}

export interface ListenOptions {
  readonly clock: Clock;
  /** The most connections at a time. A client beyond them is asked to come back. Without it there is no limit. */
  readonly maxConnections?: number;
}

/** The time for a client to read the refusal. */
const REFUSAL_MS = 1_000;
const REFUSAL_RETRY_MS = 1_000;
/**
 * While connections are scarce, a client must send its first byte within the first time and its headers within the
 * second. A client that has its answer must have sent the rest of its request within the first.
 */
const SILENT_MS = 1_000;
const FIRST_HEADERS_MS = 5_000;
const MAKE_ROOM_EVERY_MS = 100;

/** Refuses a connection before its request. A client may take any time to send one. */
function refuseConnection(socket: Socket, clock: Clock): void {
  const error = new PublicError(
    "unavailable",
    "The server has as many connections as it may. Please try again.",
    { retryAfterMs: REFUSAL_RETRY_MS },
  );
  socket.on("error", () => {});
  answerByHand(socket, error);
  const cancel = clock.after(REFUSAL_MS, () => socket.destroy());
  socket.once("close", cancel);
}

/**
 * Closes connections that have not sent a request in time, or still send one that has its answer, to make room for the next
 * client.
 */
function closeUnused(connections: Connections, answers: Answers, nowMs: number): void {
  for (const [socket, sinceMs] of connections) {
    const answer = answers.get(socket);
    const isDraining = answer?.closed === true && !answer.req.complete;
    if (answer !== undefined && !isDraining) continue;
    const allowedMs = isDraining || socket.bytesRead === 0 ? SILENT_MS : FIRST_HEADERS_MS;
    if (nowMs - sinceMs > allowedMs) socket.destroy();
  }
}

/** A pipeline to an answer adds seven listeners of its close to four others. Node warns of more than ten. */
const MAX_LISTENERS = 20;

interface ListenerHooks {
  /** All connections together may have thousands of requests at the same moment. */
  readonly turn: TurnBudget;
  readonly reading: ClientReading;
  readonly onAsked: (outgoing: ServerResponse) => void;
  readonly onAnswered: (incoming: IncomingMessage) => void;
}

function requestListener(
  app: App,
  answers: Answers,
  { turn, reading, onAsked, onAnswered }: ListenerHooks,
): ReturnType<typeof inTurn> {
  const answer = getRequestListener(app.fetch, {
    hostname: "localhost",
    autoCleanupIncoming: false,
    errorHandler: answerUnroutable,
  });
  const begin = (incoming: IncomingMessage, outgoing: ServerResponse) => {
    if (isUnwanted(incoming, outgoing)) return;
    if (!turn.hasTime(() => begin(incoming, outgoing))) return;
    const fault = faultOfHead(incoming);
    if (fault === null) void answer(incoming, outgoing);
    else answerFault(outgoing, fault);
  };
  const { listener, hasRoom } = inTurn((incoming, outgoing) => {
    outgoing.setMaxListeners(MAX_LISTENERS);
    answers.set(incoming.socket, outgoing);
    onAsked(outgoing);
    whenClosed(outgoing, () => onAnswered(incoming));
    begin(incoming, outgoing);
  });
  return {
    listener: (incoming, outgoing) => {
      joinShortPieces(incoming, (readsOn) => reading.parsed(incoming.socket, readsOn));
      listener(incoming, outgoing);
    },
    hasRoom,
  };
}

/** Whether the client of a request that changes nothing has left. It may do so a thousand times a second. */
const isUnwanted = ({ method = "" }: IncomingMessage, { closed }: ServerResponse) =>
  closed && ["GET", "HEAD"].includes(method);

/**
 * Lets the request of a last answer come in before the connection closes. Node closes it with the answer, where the client asked
 * for that (`Connection: close`, HTTP/1.0) or the server stops. It replaces `destroySoon`, by which Node does so.
 */
function closeBehindRequest(socket: Socket, answers: Answers): void {
  const destroySoon = socket.destroySoon.bind(socket);
  socket.destroySoon = () => {
    const request = answers.get(socket)?.req;
    if (request === undefined || request.complete || request.destroyed) return destroySoon();
    request.once("end", destroySoon);
    socket.end();
  };
}

function drainRequest(incoming: IncomingMessage, clock: Clock): void {
  if (incoming.complete || incoming.destroyed) return;
  incoming.unpipe();
  incoming.resume();
  const cancel = clock.after(REQUEST_DRAIN_MS, () => incoming.socket.destroy());
  incoming.once("end", cancel);
  incoming.once("close", cancel);
}
