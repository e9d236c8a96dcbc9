/**
 * The interactive requests under way of projects that may have only so many at once. Nothing here needs a sync: the next
 * start takes all slots back.
 */
import type { InteractiveSlot } from "../quotas.ts";
import { interactiveSlots } from "./access-schema.ts";
import { type Db, writeUnsynced } from "./database.ts";
import { and, eq, inArray, lte } from "./drizzle.ts";

export class SqliteInteractiveSlots {
  readonly #db: Db;

  constructor(db: Db) {
    this.#db = db;
  }

  take(
    { id, project }: InteractiveSlot,
    { limit, ttlMs }: { readonly limit: number; readonly ttlMs: number },
    nowMs: number,
  ): boolean {
    const isOfProject = eq(interactiveSlots.project, project);
    return writeUnsynced(this.#db, () => {
      this.#db
        .delete(interactiveSlots)
        .where(and(isOfProject, lte(interactiveSlots.expiresAtMs, nowMs)))
        .run();
      const taken = this.#db.select().from(interactiveSlots).where(isOfProject).all();
      if (taken.length >= limit) return false;
      this.#db
        .insert(interactiveSlots)
        .values({ id, project, expiresAtMs: nowMs + ttlMs })
        .run();
      return true;
    });
  }

  renew(ids: readonly string[], expiresAtMs: number): void {
    writeUnsynced(this.#db, () =>
      this.#db
        .update(interactiveSlots)
        .set({ expiresAtMs })
        .where(inArray(interactiveSlots.id, [...ids]))
        .run(),
    );
  }

  release(id: string): void {
    writeUnsynced(this.#db, () =>
      this.#db.delete(interactiveSlots).where(eq(interactiveSlots.id, id)).run(),
    );
  }
}
