import { createLog, type Log } from "../../src/telemetry/log.ts";
import { named } from "./waits.ts";

export interface LoggedEvent {
  readonly event: string;
  readonly level: string;
  readonly [field: string]: unknown;
}

/** The events that the engine logs when its own work fails. */
const FAILURES: readonly string[] = ["loop.pass_failed", "chunk.failed"];

/**
 * The log of the service, as events that a test can wait for. The engine repeats failed work after a lease of half a
 * minute, which is longer than any test waits. So a failure with a cause in the code ends all waits at once, unless the
 * test has waited for such a failure itself.
 */
export class Events {
  readonly all: LoggedEvent[] = [];
  #failure: LoggedEvent | null = null;
  #expectsFailures = false;
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
    if (FAILURES.includes(event)) this.#expectsFailures = true;
    while (this.count(event, fields) < count) {
      if (this.#failure !== null && !this.#expectsFailures) {
        throw new Error(`"${event}" will not come: ${JSON.stringify(this.#failure, null, 2)}`);
      }
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#waiting.add(resolve);
      const wanted = `${count} x "${event}" ${JSON.stringify(fields)}`;
      const describe = () => `${wanted} in the log, which has ${this.count(event, fields)}`;
      await named(describe, promise);
    }
  }

  #add(event: LoggedEvent): void {
    this.all.push(event);
    if (FAILURES.includes(event.event) && !isOfMachine(event)) this.#failure ??= event;
    for (const check of this.#waiting) check();
    this.#waiting.clear();
  }
}

const matches = (event: LoggedEvent, fields: Readonly<Record<string, unknown>>) =>
  Object.entries(fields).every(([name, value]) => event[name] === value);

/** A failure of the machine, such as a full disk or a locked database, has a code. It passes by itself. */
const isOfMachine = ({ err }: LoggedEvent) =>
  typeof err === "object" && err !== null && "code" in err && err.code !== undefined;
