/**
 * Puts the rows of several routes into the order of their lines. A batch may have 2,000 routes, and a step for each of its
 * lines, so a step must cost little. A chunk is read only once one of its lines may be the next of all.
 */
import { firstPlace } from "../../batch/binary-search.ts";
import type { ChunkJournal } from "../../store/finalizing.ts";

interface Numbered {
  readonly lineNumber: number;
}

interface RouteOptions<R extends Numbered> {
  /** The first line from `fromLine` on that may be in a chunk. */
  readonly lineOf: ReadonlyMap<ChunkJournal, number>;
  readonly read: (journal: ChunkJournal) => AsyncGenerator<readonly R[]>;
  readonly fromLine: number;
}

/** The rows of one route, read chunk by chunk, and group by group. */
export class RouteRows<R extends Numbered> {
  readonly #options: RouteOptions<R>;
  readonly #journals: ChunkJournal[];
  /** The chunk that is being read; null between two chunks. */
  #groups: AsyncGenerator<readonly R[]> | null = null;
  #group: readonly R[] = [];
  #at = 0;

  constructor(journals: readonly ChunkJournal[], options: RouteOptions<R>) {
    this.#journals = [...journals];
    this.#options = options;
  }

  /** Whether the next row is known. */
  get isRead(): boolean {
    return this.#at < this.#group.length;
  }

  /** The line of the next row. Where it is not known, the row may not come before this line. Infinite at the end. */
  get line(): number {
    const head = this.#group[this.#at];
    if (head !== undefined) return head.lineNumber;
    const [next] = this.#journals;
    if (this.#groups !== null) return this.#options.fromLine;
    return next === undefined ? AT_END : (this.#options.lineOf.get(next) ?? AT_END);
  }

  /** Reads the next group of a chunk, if it has one. */
  async readOn(): Promise<void> {
    const { read, fromLine } = this.#options;
    if (this.#groups === null) {
      const next = this.#journals.shift();
      if (next === undefined) return;
      this.#groups = read(next);
    }
    const { done, value } = await this.#groups.next();
    if (done === true) this.#groups = null;
    this.#group = done === true ? [] : value;
    const from = this.#group.findIndex(({ lineNumber }) => lineNumber >= fromLine);
    this.#at = from === -1 ? this.#group.length : from;
  }

  /** Returns at least one row: where an input was damaged, two routes may have a line of the same number. */
  takeBefore(lineNumber: number): readonly R[] {
    const from = this.#at++;
    for (; this.#at < this.#group.length; this.#at++) {
      if ((this.#group[this.#at] as R).lineNumber >= lineNumber) break;
    }
    return this.#group.slice(from, this.#at);
  }
}

const AT_END = Number.POSITIVE_INFINITY;

/** The routes that have rows left. */
export class RoutesByLine<R extends Numbered> {
  /** The route whose line comes first is the last. */
  readonly #routes: RouteRows<R>[];

  constructor(routes: readonly RouteRows<R>[]) {
    this.#routes = routes.toSorted((a, b) => b.line - a.line);
  }

  /** The line at which the first route begins; infinite when there is none. */
  get firstLine(): number {
    return this.#routes.at(-1)?.line ?? AT_END;
  }

  take(): RouteRows<R> | undefined {
    return this.#routes.pop();
  }

  /** Adds a route, unless it is at its end. */
  add(route: RouteRows<R>): void {
    const { line } = route;
    if (line === AT_END) return;
    const isBefore = (at: number) => (this.#routes[at] as RouteRows<R>).line <= line;
    this.#routes.splice(firstPlace(this.#routes.length, isBefore), 0, route);
  }
}

/**
 * Finds the first line from `fromLine` on that each chunk may have; a chunk without one is left out. The chunks that have
 * begun share the lines between them, so an extent ends where any other begins.
 */
export function nextLines(
  journals: readonly ChunkJournal[],
  fromLine: number,
): ReadonlyMap<ChunkJournal, number> {
  const places = journals.map((journal) => ({ journal, place: placeOf(journal, fromLine) }));
  const begunAt = ({ journal: { chunk }, place }: (typeof places)[number]) =>
    chunk.extents[place]?.firstLine ?? 0;
  const latest = places.reduce((line, each) => Math.max(line, begunAt(each)), 0);
  const lines = places.map((each): [ChunkJournal, number] => {
    const goesOn = each.place !== -1 && begunAt(each) === latest;
    const { extents } = each.journal.chunk;
    if (goesOn || extents.length === 0) return [each.journal, fromLine];
    return [each.journal, extents[each.place + 1]?.firstLine ?? AT_END];
  });
  return new Map(lines.filter(([, line]) => line !== AT_END).sort(([, a], [, b]) => a - b));
}

/** Returns the place of the last extent that begins at `line` or before; -1 when all begin behind it. */
const placeOf = ({ chunk: { extents } }: ChunkJournal, line: number): number =>
  firstPlace(extents.length, (at) => (extents[at]?.firstLine ?? AT_END) > line) - 1;
