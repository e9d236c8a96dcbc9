/**
 * The interactive requests under way of projects that may have only so many at once. Nothing here needs a sync: the next
 * start takes all slots back.
 */
import type { InteractiveSlot } from "../quotas.ts";
import { interactiveSlots } from "./access-schema.ts";
import { type Db, type Now, writeUnsynced } from "./database.ts";
import { and, eq, inArray, lte } from "./drizzle.ts";

export class SqliteInteractiveSlots {
  readonly #db: Db;
  readonly #now: Now;

  constructor(db: Db, now: Now) {
    this.#db = db;
    this.#now = now;
  }

  async takeInteractiveSlot(
    { id, project }: InteractiveSlot,
    { limit, ttlMs }: { readonly limit: number; readonly ttlMs: number },
  ): Promise<boolean> {
    const nowMs = this.#now();
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

  async renewInteractiveSlots(ids: readonly string[], ttlMs: number): Promise<void> {
    const expiresAtMs = this.#now() + ttlMs;
    writeUnsynced(this.#db, () =>
      this.#db
        .update(interactiveSlots)
        .set({ expiresAtMs })
        .where(inArray(interactiveSlots.id, [...ids]))
        .run(),
    );
  }

  async releaseInteractiveSlot(id: string): Promise<void> {
    writeUnsynced(this.#db, () =>
      this.#db.delete(interactiveSlots).where(eq(interactiveSlots.id, id)).run(),
    );
  }
}
