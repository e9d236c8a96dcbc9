/** Keeps what all tests of a file use, such as a server or a folder. */
import { afterAll } from "vitest";

/** Returns what it is given, and closes it after the tests: the last one that was opened first. */
export function forAllTests<T extends AsyncDisposable | Disposable | null>(opened: T): T {
  afterAll(async () => {
    if (opened === null) return;
    if (Symbol.asyncDispose in opened) await opened[Symbol.asyncDispose]();
    else opened[Symbol.dispose]();
  });
  return opened;
}
