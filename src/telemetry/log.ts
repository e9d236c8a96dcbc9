/**
 * Writes structured logs: one JSON object a line, on standard error, because other programs read the standard output.
 * Each line is an event named `noun.verb` with fields.
 */
import {
  type DestinationStream,
  type LoggerOptions,
  pino,
  stdSerializers,
  stdTimeFunctions,
} from "pino";
import type { Clock } from "../clock.ts";
import { printableLines } from "../printable.ts";
import { isDamaged } from "../store/failures.ts";
import { systemCode, systemCodes } from "../system-code.ts";
import type { LOG_EVENTS } from "./log-events.ts";
import { readableLine } from "./readable-line.ts";
import { Repeats } from "./repeats.ts";

type EventLevel = keyof typeof LOG_EVENTS;
export type LogEvent<Level extends EventLevel> = keyof (typeof LOG_EVENTS)[Level] & string;

/** Fields have names in snake case, as in the API, the configuration and the audit log. The compiler refuses others. */
type SnakeCased<Fields> = {
  readonly [Name in keyof Fields]: Name extends Lowercase<Name & string> ? Fields[Name] : never;
};

interface LogFunction<Event extends string> {
  <Fields extends object>(fields: Fields & SnakeCased<Fields>, event: Event): void;
  (event: Event): void;
}

/** A log that takes only the events of the table, each at its level. */
export type Log = { readonly [Level in EventLevel]: LogFunction<LogEvent<Level>> };

export const LOG_LEVELS = ["debug", "info", "warn", "error", "silent"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

/**
 * The lines that wait for a reader which has stopped. A blocking write would stop the server with it, and without a bound
 * the memory would grow for as long.
 */
const WAITING_MAX_BYTES = 262_144;

/** A log with a level that may change. */
export type LeveledLog = Log & { level: LogLevel };

interface RedactedLogOptions {
  /** Removes secrets from each line. */
  readonly redact: (line: string) => string;
  /** Whether a person reads the lines in a terminal; programs read JSON. */
  readonly isForPeople: boolean;
  readonly clock: Clock;
}

/** Creates a log on standard error. */
export function createRedactedLog(
  level: LogLevel,
  { redact, isForPeople, clock }: RedactedLogOptions,
): LeveledLog {
  const { stderr } = process;
  // A terminal shows a log that was written for programs, too.
  const shape = isForPeople ? readableLine : printableLines;
  let dropped = 0;
  const write = (line: string) => {
    if (stderr.writableLength < WAITING_MAX_BYTES) stderr.write(shape(redact(line)));
    else dropped++;
  };
  const log = createLog(level, { write }, new Repeats(clock));
  stderr.on("drain", () => {
    if (dropped === 0) return;
    const lines = dropped;
    dropped = 0;
    log.warn({ lines }, "log.lines_dropped");
  });
  return log;
}

/** The errors of a database or a bucket that is away. Each request and each loop meets them until it is back. */
const AWAY_CODES: readonly string[] = ["STORE_UNAVAILABLE", "BLOBS_UNAVAILABLE"];
const isAway = (error: unknown) => systemCodes(error).some((code) => AWAY_CODES.includes(code));

/** What a client has asked for is logged each time, because that client has a question. */
const OF_CLIENTS: readonly string[] = ["request.completed", "download.broken"];

/**
 * Leaves out what fails because of a damaged database. One event has named it, and all work is repeated until the
 * operator has restored the file. While a database or a bucket is away, one line in a while stands for those like it.
 */
const sparing = (repeats: Repeats | null): NonNullable<LoggerOptions["hooks"]> => ({
  logMethod(args, log) {
    const [fields, event] = args as unknown as [FailureFields, LogEvent<EventLevel>];
    const { err, loop = "" } = fields;
    const isOfClient = OF_CLIENTS.includes(event);
    if (!isOfClient && isDamaged(err)) return;
    if (repeats === null || isOfClient || !isAway(err)) {
      log.apply(this, args);
      return;
    }
    const count = repeats.count(`${event} ${loop}`);
    if (count !== null) log.apply(this, [{ ...fields, count }, event]);
  },
});

interface FailureFields {
  readonly err?: unknown;
  readonly loop?: string;
}

/**
 * Names the codes that Node.js has no name for. What is away is said by the messages; a stack would be five sixths of a log
 * that grows with every request.
 */
function serialized(error: unknown) {
  if (!(error instanceof Error)) return error;
  const { stack, ...fields } = stdSerializers.err(error);
  return { ...fields, code: systemCode(error), ...(!isAway(error) && { stack }) };
}

/** Creates a log on a stream. Without `repeats`, it leaves out nothing that is repeated. */
export function createLog(
  level: LogLevel,
  stream: DestinationStream = process.stderr,
  repeats: Repeats | null = null,
): LeveledLog {
  const log = pino(
    {
      level,
      base: null,
      messageKey: "event",
      timestamp: stdTimeFunctions.isoTime,
      hooks: sparing(repeats),
      serializers: { err: serialized },
      formatters: { level: (label) => ({ level: label }) },
      // No caller passes a key to the log. This list is a second protection.
      redact: [
        "authorization",
        "*.authorization",
        "api_key",
        "*.api_key",
        "*.apiKey",
        "key",
        "*.key",
        "secret",
        "*.secret",
      ],
    },
    stream,
  );
  return log as LeveledLog;
}
