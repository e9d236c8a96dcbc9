/** Tells a failure of the source of a file from one of the place that it goes to. */
import type { ParcelFile } from "./location.ts";

export interface WatchedFile {
  readonly file: ParcelFile;
  /** What the source has thrown. */
  readonly failure: { readonly reason: unknown } | null;
}

export function watched(file: ParcelFile): WatchedFile {
  let failure: WatchedFile["failure"] = null;
  async function* open(startByte?: number) {
    try {
      yield* file.open(startByte);
    } catch (reason) {
      failure = { reason };
      throw reason;
    }
  }
  return {
    file: { ...file, open },
    get failure() {
      return failure;
    },
  };
}
