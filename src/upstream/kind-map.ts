/**
 * Keeps a value for each kind of request: one project, endpoint and model. Clients can ask for ever new models, so there is
 * a limit, which projects share: the project with the most kinds loses its oldest one.
 */
import type { RequestKind } from "./request.ts";

const MAX_KINDS = 1_000;

export class KindMap<Value> {
  readonly #values = new Map<string, Value>();

  get size(): number {
    return this.#values.size;
  }

  get(kind: RequestKind): Value | null {
    // Most targets refuse nothing, so no key is made for them.
    return this.size === 0 ? null : (this.#values.get(keyOf(kind)) ?? null);
  }

  /** Sets the value, and makes its kind the latest one. */
  set(kind: RequestKind, value: Value): void {
    const key = keyOf(kind);
    this.#values.delete(key);
    this.#values.set(key, value);
    if (this.size > MAX_KINDS) this.#dropOldest();
  }

  delete(kind: RequestKind): void {
    this.#values.delete(keyOf(kind));
  }

  clear(): void {
    this.#values.clear();
  }

  /** Deletes the kinds of projects; returns whether there were any. */
  deleteProjects(projects: readonly string[]): boolean {
    const keys = [...this.#values.keys()].filter((key) => projects.includes(projectIn(key)));
    for (const key of keys) this.#values.delete(key);
    return keys.length > 0;
  }

  values(): MapIterator<Value> {
    return this.#values.values();
  }

  /** Lists at most so many: the latest kind of each project, then the second latest of each, and so on. */
  latest(limit: number): [key: string, value: Value][] {
    const ranks = new Map<string, number>();
    const ranked = [...this.#values].reverse().map((entry) => {
      const project = projectIn(entry[0]);
      const rank = (ranks.get(project) ?? 0) + 1;
      ranks.set(project, rank);
      return { entry, rank };
    });
    ranked.sort((a, b) => a.rank - b.rank);
    return ranked.slice(0, limit).map(({ entry }) => entry);
  }

  #dropOldest(): void {
    const byProject = Map.groupBy(this.#values.keys(), projectIn).values();
    const most = byProject.reduce((a, b) => (b.length > a.length ? b : a));
    const [oldest] = most;
    if (oldest !== undefined) this.#values.delete(oldest);
  }
}

const projectIn = (key: string) => key.slice(0, key.indexOf("\n"));

/** The key of a kind in maps and reports. */
export const keyOf = ({ project, endpoint, model }: RequestKind) =>
  `${project}\n${endpoint}\n${model}`;
