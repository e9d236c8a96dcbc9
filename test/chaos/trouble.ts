/** What happens to the processes during a run, in an order that the seed decides. */
import { setTimeout as delay } from "node:timers/promises";
import { seededRandom } from "../support/seeded-random.ts";
import type { Sizes } from "./sizes.ts";
import type { Supervised } from "./supervised.ts";

export interface TroubleOptions {
  readonly sizes: Sizes;
  readonly seed: number;
  readonly processes: readonly Supervised[];
  readonly restartDatabase: () => Promise<void>;
  readonly setBucket: (state: "well" | "slow_down") => void;
  readonly say: (text: string) => void;
}

interface Event {
  readonly name: string;
  readonly happen: () => Promise<void>;
  /** Whether other events happen meanwhile. */
  readonly lasts?: boolean;
}

/** Resolves after the last event. `onProgress` hears the part of them that has happened. */
export async function makeTrouble(
  options: TroubleOptions,
  onProgress: (part: number) => void,
): Promise<void> {
  const { sizes, seed, say } = options;
  const random = seededRandom(seed);
  const events = eventsOf(options, random);
  const slowDownAt = Math.floor(events.length * (0.2 + 0.3 * random()));
  const inBackground: Promise<void>[] = [];
  for (const [i, { name, happen, lasts }] of events.entries()) {
    await delay(sizes.gapMs * (0.4 + 1.2 * random()));
    if (i === slowDownAt) inBackground.push(slowDownFor(options));
    say(name);
    const happened = happen();
    if (lasts) inBackground.push(happened);
    else await happened;
    onProgress((i + 1) / events.length);
  }
  await Promise.all(inBackground);
}

/** The kills and freezes in a random order, with the restarts of the database spread among them. */
function eventsOf(
  { sizes, processes, restartDatabase }: TroubleOptions,
  random: () => number,
): Event[] {
  const kills = Array.from({ length: sizes.killsPerProcess }, () =>
    shuffled(processes, random).map((each) => ({
      name: `kill -9 ${each.name}`,
      happen: () => each.kill(),
    })),
  ).flat();
  const freezes = Array.from({ length: sizes.freezesPerProcess }, () =>
    processes.map((each) => ({
      name: `${each.name} stands still for ${sizes.freezeMs / 1000} s`,
      happen: () => each.freeze(sizes.freezeMs),
      lasts: true,
    })),
  ).flat();
  const events = shuffled<Event>([...kills, ...freezes], random);
  for (let n = sizes.databaseRestarts; n > 0; n--) {
    const at = Math.floor(((n - random()) / sizes.databaseRestarts) * events.length);
    events.splice(at, 0, { name: "restart of PostgreSQL", happen: restartDatabase });
  }
  return events;
}

async function slowDownFor({ sizes, setBucket, say }: TroubleOptions): Promise<void> {
  say(`the bucket answers 503 SlowDown for ${sizes.slowDownMs / 1000} s`);
  setBucket("slow_down");
  await delay(sizes.slowDownMs);
  setBucket("well");
  say("the bucket answers again");
}

function shuffled<T>(values: readonly T[], random: () => number): T[] {
  return values
    .map((value) => ({ value, order: random() }))
    .sort((a, b) => a.order - b.order)
    .map(({ value }) => value);
}
