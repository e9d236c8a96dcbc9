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
  readonly #byName = new Map<string, LoggedEvent[]>();
  readonly #waits = new Set<Wait>();
  #failure: LoggedEvent | null = null;
  #expectsFailures = false;
  readonly log: Log;

  constructor() {
    this.log = createLog("debug", { write: (line) => this.#add(JSON.parse(line) as LoggedEvent) });
  }

  count(event: string, fields: Fields = {}): number {
    return (this.#byName.get(event) ?? []).filter((each) => matches(each, fields)).length;
  }

  /** Resolves once `event` (with these fields) has been logged `count` times in all. */
  async reached(
    event: string,
    { count = 1, ...fields }: { count?: number; [field: string]: unknown } = {},
  ): Promise<void> {
    if (FAILURES.includes(event)) this.#expectsFailures = true;
    const left = count - this.count(event, fields);
    if (left <= 0) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    const wait = { event, fields, left, end: resolve };
    this.#waits.add(wait);
    if (this.#isDoomed) resolve();
    const wanted = `${count} x "${event}" ${JSON.stringify(fields)}`;
    await named(() => `${wanted} in the log, which has ${count - wait.left}`, promise);
    this.#waits.delete(wait);
    if (wait.left > 0) {
      throw new Error(`"${event}" will not come: ${JSON.stringify(this.#failure, null, 2)}`);
    }
  }

  get #isDoomed(): boolean {
    return this.#failure !== null && !this.#expectsFailures;
  }

  #add(event: LoggedEvent): void {
    this.all.push(event);
    const alike = this.#byName.get(event.event);
    if (alike === undefined) this.#byName.set(event.event, [event]);
    else alike.push(event);
    if (FAILURES.includes(event.event) && !isOfMachine(event)) this.#failure ??= event;
    for (const wait of this.#waits) {
      if (wait.event === event.event && matches(event, wait.fields)) wait.left--;
      if (wait.left <= 0 || this.#isDoomed) wait.end();
    }
  }
}

type Fields = Readonly<Record<string, unknown>>;

interface Wait {
  readonly event: string;
  readonly fields: Fields;
  /** The number of such events that are still to come. */
  left: number;
  readonly end: () => void;
}

function matches(event: LoggedEvent, fields: Fields): boolean {
  for (const name in fields) if (event[name] !== fields[name]) return false;
  return true;
}

/** A failure of the machine, such as a full disk or a locked database, has a code. It passes by itself. */
const isOfMachine = ({ err }: LoggedEvent) =>
  typeof err === "object" && err !== null && "code" in err && err.code !== undefined;
