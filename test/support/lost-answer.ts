import { openStorage } from "../../src/runtime/storage/storage.ts";
import { StoreUnavailable } from "../../src/store/failures.ts";
import type { Store } from "../../src/store/store.ts";

/** Opens a storage that stores each new batch, and then loses the answer of the database. */
export const losingAnswers: typeof openStorage = async (places, closers) => {
  const opened = await openStorage(places, closers);
  if (!opened.ok) return opened;
  const { store } = opened;
  const insertBatch: Store["insertBatch"] = async (batch, insertion) => {
    await store.insertBatch(batch, insertion);
    const cause = new Error("the connection broke before the answer came");
    throw new StoreUnavailable(cause, { mayBeMade: true });
  };
  return { ...opened, store: { ...store, insertBatch } };
};
