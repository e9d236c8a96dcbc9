/**
 * Names the errors of the operating system. Node.js takes their codes from libuv, which has no name for a full quota, nor for a
 * file that a network share has replaced: it calls them "Unknown system error -122".
 */
import { constants } from "node:os";

const NAMES = new Map(Object.entries(constants.errno).map(([name, number]) => [-number, name]));

/** Returns the code of an error, such as `EDQUOT`; undefined for an error without one. */
export function systemCode(error: unknown): string | undefined {
  const { code, errno } = (error ?? {}) as NodeJS.ErrnoException;
  const isUnknown = typeof code === "string" && code.startsWith("Unknown system error");
  return (isUnknown && errno !== undefined && NAMES.get(errno)) || code;
}

/** Returns the codes of an error and of its causes. */
export function systemCodes(thrown: unknown): string[] {
  const codes: string[] = [];
  for (let error = thrown; error instanceof Error; error = error.cause) {
    const code = systemCode(error);
    if (typeof code === "string") codes.push(code);
  }
  return codes;
}
