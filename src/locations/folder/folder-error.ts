/** Translates errors of the file system into those of the port. A path of this machine must not be in their messages. */
import { systemCode } from "../../system-code.ts";
import { LocationError, type LocationFailure } from "../location.ts";

const FAILURES: Readonly<Record<string, readonly [LocationFailure, string]>> = {
  ENOENT: ["not_found", "is not there"],
  ENOTDIR: ["refused", "passes through a file or a link"],
  ELOOP: ["refused", "passes through a link"],
  EISDIR: ["refused", "is a folder"],
  ENXIO: ["refused", "is not a regular file"],
  ENAMETOOLONG: ["refused", "is too long for the file system"],
  EINVAL: ["refused", "is not a name that the file system takes"],
  EACCES: ["forbidden", "is closed to batchd"],
  EPERM: ["forbidden", "is closed to batchd"],
  EROFS: ["forbidden", "is on a file system that is read-only"],
  ENOSPC: ["unavailable", "does not fit on the disk"],
  EDQUOT: ["unavailable", "is beyond the quota of the disk"],
};

/** `what` names the place in the words of clients. An error that is not the system's comes back as it is. */
export function folderError(error: unknown, what: string): unknown {
  if (!(error instanceof Error) || error instanceof LocationError) return error;
  const code = systemCode(error);
  if (typeof code !== "string" || !/^E[A-Z0-9]+$/.test(code)) return error;
  const [failure, words] = FAILURES[code] ?? ["unavailable", `could not be used (${code})`];
  return new LocationError(failure, `${what} ${words}`, { cause: error });
}

/** The error of a delivery. What it has made and does not find any more was removed meanwhile, so it is tried again. */
export function writeError(error: unknown, what: string): unknown {
  const translated = folderError(error, what);
  if (!(translated instanceof LocationError) || translated.failure !== "not_found")
    return translated;
  return new LocationError("unavailable", `${what} was removed meanwhile`, { cause: error });
}
