/**
 * Writes structured logs: one JSON object a line, on standard error, because other programs read the standard output.
 * Each line is an event named `noun.verb` with fields.
 */
import { type DestinationStream, destination, pino, stdTimeFunctions } from "pino";
import type { LOG_EVENTS } from "./log-events.ts";

type EventLevel = keyof typeof LOG_EVENTS;
export type LogEvent<Level extends EventLevel> = keyof (typeof LOG_EVENTS)[Level] & string;

interface LogFunction<Event extends string> {
  (fields: object, event: Event): void;
  (event: Event): void;
}

/** A log that takes only the events of the table, each at its level. */
export type Log = { readonly [Level in EventLevel]: LogFunction<LogEvent<Level>> };

export const LOG_LEVELS = ["debug", "info", "warn", "error", "silent"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

const standardError = () => destination({ fd: 2, sync: true });

/** A log with a level that may change. */
export type LeveledLog = Log & { level: LogLevel };

/** Creates a log on standard error. `redact` removes secrets from each line. */
export function createRedactedLog(level: LogLevel, redact: (line: string) => string): LeveledLog {
  const stream = standardError();
  return createLog(level, { write: (line) => stream.write(redact(line)) });
}

export function createLog(
  level: LogLevel,
  stream: DestinationStream = standardError(),
): LeveledLog {
  const log = pino(
    {
      level,
      base: null,
      messageKey: "event",
      timestamp: stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      // No caller passes a key to the log. This list is a second protection.
      redact: [
        "authorization",
        "*.authorization",
        "apiKey",
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
