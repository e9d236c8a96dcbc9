/**
 * The interactive requests that wait for a slot of a route. Projects take turns, so that many requests of one do not keep
 * those of the others waiting. Those of a project go in the order in which they came.
 */
import type { Eligible } from "./load-balancer.ts";
import { type Waiter, WaitGroup } from "./wait-group.ts";

export class ProjectTurns<Target extends Eligible> {
  /** The project whose turn is next comes first. */
  readonly #groups = new Map<string, WaitGroup<Target>>();

  get isEmpty(): boolean {
    return this.#groups.size === 0;
  }

  /** Adds a waiter. A project without one before has its turn after all others. */
  add(waiter: Waiter<Target>, targets: readonly Target[]): void {
    const { project } = waiter.request.request;
    const group = this.#groups.get(project) ?? new WaitGroup<Target>();
    this.#groups.set(project, group);
    group.add(waiter, targets);
  }

  remove(waiter: Waiter<Target>): void {
    const { project } = waiter.request.request;
    const group = this.#groups.get(project);
    group?.remove(waiter);
    if (group?.isEmpty === true) this.#groups.delete(project);
  }

  /** Ends the turn of a project. */
  endTurn(project: string): void {
    const group = this.#groups.get(project);
    if (group === undefined) return;
    this.#groups.delete(project);
    this.#groups.set(project, group);
  }

  /** Returns the first waiter that may go, of the first project that has one. */
  first(mayGo: (waiter: Waiter<Target>) => boolean): Waiter<Target> | null {
    for (const group of this.#groups.values()) {
      const first = group.first(mayGo);
      if (first !== null) return first;
    }
    return null;
  }

  firsts(): (Waiter<Target> | null)[] {
    return [...this.#groups.values()].flatMap((group) => group.firsts());
  }
}
