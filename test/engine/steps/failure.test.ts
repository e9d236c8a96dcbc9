/** What counts against a chunk or a batch, and what is waited for. */
import { expect, test } from "vitest";
import { isPassing, isRefusal, NotWritten } from "../../../src/engine/steps/failure.ts";

const withCode = (code: string) => Object.assign(new Error("x"), { code });
const causedBy = (cause: unknown) => new Error("outer", { cause });

test.each([
  ["a full disk", withCode("ENOSPC")],
  ["a full quota", Object.assign(withCode("Unknown system error -122"), { errno: -122 })],
  ["no descriptors", withCode("EMFILE")],
  ["a locked database", withCode("SQLITE_BUSY")],
  ["a locked database, in more words", withCode("SQLITE_BUSY_SNAPSHOT")],
  ["a disk that fails below the database", withCode("SQLITE_IOERR_WRITE")],
  ["any of these as a cause", causedBy(causedBy(withCode("ENOSPC")))],
  ["bytes that could not be stored", new NotWritten("x")],
])("%s is waited for", (_name, error) => {
  expect(isPassing(error)).toBe(true);
});

test.each([
  ["a mistake in the code", new TypeError("x")],
  ["a missing blob", withCode("ENOENT")],
  ["a rule of the database", withCode("SQLITE_CONSTRAINT_CHECK")],
  ["something thrown that is no error", "ENOSPC"],
])("%s counts", (_name, error) => {
  expect(isPassing(error)).toBe(false);
});

test("what a rule of the database forbids is never tried again", () => {
  expect(isRefusal(withCode("SQLITE_CONSTRAINT_UNIQUE"))).toBe(true);
  expect(isRefusal(causedBy(withCode("SQLITE_CONSTRAINT")))).toBe(true);
  expect(isRefusal(withCode("SQLITE_BUSY"))).toBe(false);
});
