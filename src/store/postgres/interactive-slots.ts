/** The interactive requests under way of projects that may have only so many at once. */
import type { InteractiveSlot } from "../quotas.ts";
import { interactiveSlots } from "./access-schema.ts";
import type { Database } from "./database.ts";
import { and, eq, inArray, lte } from "./drizzle.ts";
import { later } from "./leases.ts";
import { lockLists } from "./project-locks.ts";

export class PostgresInteractiveSlots {
  readonly #db: Database;

  constructor(db: Database) {
    this.#db = db;
  }

  takeInteractiveSlot(
    { id, project }: InteractiveSlot,
    { limit, ttlMs }: { readonly limit: number; readonly ttlMs: number },
  ): Promise<boolean> {
    const now = this.#db.now();
    const isOfProject = eq(interactiveSlots.project, project);
    return this.#db.lockingTransaction({ kind: "lists", project }, async (db) => {
      // No other request of the project comes between the count and the new row.
      await lockLists(db, project);
      await db
        .delete(interactiveSlots)
        .where(and(isOfProject, lte(interactiveSlots.expiresAtMs, now)));
      if ((await db.$count(interactiveSlots, isOfProject)) >= limit) return false;
      await db.insert(interactiveSlots).values({ id, project, expiresAtMs: later(now, ttlMs) });
      return true;
    });
  }

  async renewInteractiveSlots(ids: readonly string[], ttlMs: number): Promise<void> {
    const expiresAtMs = later(this.#db.now(), ttlMs);
    const isNamed = inArray(interactiveSlots.id, [...ids]);
    await this.#db.change((db) => db.update(interactiveSlots).set({ expiresAtMs }).where(isNamed));
  }

  async releaseInteractiveSlot(id: string): Promise<void> {
    await this.#db.change((db) => db.delete(interactiveSlots).where(eq(interactiveSlots.id, id)));
  }
}
