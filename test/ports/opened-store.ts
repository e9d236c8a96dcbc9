import type { Store } from "../../src/store/store.ts";

/** What the suites of the store are given by the test of an adapter. */
export interface OpenedStore {
  /** It goes by `storeClock`. */
  readonly store: Store;
  /** Closes the store and opens it again on the same data. */
  reopen(): Promise<Store>;
}

/** Opens an empty store, which is closed at the end of the test. */
export type OpenStore = () => Promise<OpenedStore>;
