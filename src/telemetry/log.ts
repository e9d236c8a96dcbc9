/**
 * Structured logs: one JSON object a line on standard error, so that standard output stays free for
 * what a program reads. Each line is an event named `noun.verb` with fields.
 */
import { type DestinationStream, destination, pino, stdTimeFunctions } from "pino";
import type { LOG_EVENTS } from "./log-events.ts";

type EventLevel = keyof typeof LOG_EVENTS;
export type LogEvent<Level extends EventLevel> = keyof (typeof LOG_EVENTS)[Level] & string;

interface Tell<Event extends string> {
  (fields: object, event: Event): void;
  (event: Event): void;
}

/** Takes only events of the table, each at its level. */
export type Log = { readonly [Level in EventLevel]: Tell<LogEvent<Level>> };

export const LOG_LEVELS = ["debug", "info", "warn", "error", "silent"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

const standardError = () => destination({ fd: 2, sync: true });

/** A log whose level may change. */
export type LeveledLog = Log & { level: LogLevel };

/** A log on standard error from which `redact` takes what nobody may read. */
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
      // Keys never reach a log line; this is the net below that rule.
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
