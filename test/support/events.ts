import { createLog, type Log } from "../../src/telemetry/log.ts";

export interface LoggedEvent {
  readonly event: string;
  readonly level: string;
  readonly [field: string]: unknown;
}

/** The service's own log, as events a test can wait for. */
export class Events {
  readonly all: LoggedEvent[] = [];
  readonly log: Log;
  readonly #waiting = new Set<() => void>();

  constructor() {
    this.log = createLog("debug", { write: (line) => this.#add(JSON.parse(line) as LoggedEvent) });
  }

  count(event: string, fields: Readonly<Record<string, unknown>> = {}): number {
    return this.all.filter((each) => each.event === event && matches(each, fields)).length;
  }

  /** Resolves once `event` (with these fields) has been logged `count` times in all. */
  async reached(
    event: string,
    { count = 1, ...fields }: { count?: number; [field: string]: unknown } = {},
  ): Promise<void> {
    while (this.count(event, fields) < count) {
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#waiting.add(resolve);
      await promise;
    }
  }

  #add(event: LoggedEvent): void {
    this.all.push(event);
    for (const look of this.#waiting) look();
    this.#waiting.clear();
  }
}

const matches = (event: LoggedEvent, fields: Readonly<Record<string, unknown>>) =>
  Object.entries(fields).every(([name, value]) => event[name] === value);
