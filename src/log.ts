/**
 * Structured logs: one JSON object a line on standard error, so that standard output stays free for
 * what a program reads. Each line is an event named `noun.verb` with fields.
 */
import { type DestinationStream, destination, type Logger, pino, stdTimeFunctions } from "pino";

export type Log = Logger;

export const LOG_LEVELS = ["debug", "info", "warn", "error", "silent"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

const standardError = () => destination({ fd: 2, sync: true });

export function createLog(level: LogLevel, stream: DestinationStream = standardError()): Log {
  return pino(
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
}
