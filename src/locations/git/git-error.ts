/**
 * Translates what git says into failures of the port. Clients read the message, so the address of the repository is not in
 * it, nor the address of a proxy. What the other side says (`remote: …`) is.
 */
import { LocationError, type LocationFailure } from "../location.ts";
import { GitFailed } from "./git-process.ts";

const FAILURES: readonly (readonly [RegExp, LocationFailure])[] = [
  // The words of a hook may look like any of the others.
  [/hook declined/, "refused"],
  // The base branch was moved by force or removed meanwhile, and its former commits are gone.
  [/not our ref/, "unavailable"],
  [/dubious ownership/, "forbidden"],
  [/Authentication failed|Permission denied|could not read (?:Username|Password)/i, "forbidden"],
  [/returned error: 40[13]|insufficient permission|Host key verification failed/i, "forbidden"],
  [
    /Could not resolve|unable to access|Connection|timed out|early EOF|hung up|unexpected disc/i,
    "unavailable",
  ],
  [/No space left|Disk quota|unable to lock|cannot lock ref|failed to lock/i, "unavailable"],
  [/stale info|fetch first|reference already exists/i, "unavailable"],
  [/rejected|declined|not found|does not appear to be a git repository|does not exist/i, "refused"],
];

/**
 * Recognizes a 404 that is no word of a server of repositories, which says in plain text that it has none. A proxy whose server is
 * away answers with a page, which git does not show, or names the number, as Traefik and the backend of an ingress do.
 */
const isPage = (complaint: string) =>
  /^fatal: repository '.*' not found/m.test(complaint) &&
  !/^remote: (?!.*\b404\b)/m.test(complaint);

/** Git does not have an object of a branch, and may not ask for it. */
const HELD_BACK = /^fatal: transport '\w+' not allowed/m;

/** The lines that say something, instead of what git was doing. */
const TELLING = /^(?:remote: |fatal: |error: | ! |!\t)/;
const PROGRESS = /^remote: [\w ]+: +\d+%/;

export function gitError(error: unknown, what: string, address: string): unknown {
  if (!(error instanceof GitFailed)) return error;
  const { complaint, isSilent } = error;
  const known = FAILURES.find(([pattern]) => pattern.test(complaint))?.[1];
  const failure = isPage(complaint) ? "unavailable" : (known ?? "unavailable");
  if (isSilent) {
    return new LocationError("unavailable", `${what}: git took too long`, { cause: error });
  }
  if (HELD_BACK.test(complaint)) {
    const words = `${what}: the repository does not send all folders of its branches`;
    return new LocationError("unavailable", words, { cause: error });
  }
  const lines = complaint
    .split(/[\r\n]+/)
    .filter((line) => TELLING.test(line) && !PROGRESS.test(line));
  const words = withoutAddress((lines.join(" ") || complaint).replaceAll(/\s+/g, " "), address);
  return new LocationError(failure, `${what}: git says: ${words.trim()}`, { cause: error });
}

/** The places where versions of curl name a proxy, once the name of the repository is replaced. */
const PROXY = /\b(connect(?:ion)? to|via(?= \S+ after)|resolve proxy:) (?!the repository\b)\S+/gi;

/** Programs spell the name of a host in small letters, or as the operator has it, with its port or without. */
function withoutAddress(text: string, address: string): string {
  const url = URL.parse(address);
  const host = url?.host ?? /^(?:[^@/]+@)?([^:/]+):/.exec(address)?.[1] ?? "";
  const known = [address, host, url?.hostname.replace(/^\[(.*)\]$/, "$1") ?? ""];
  return known
    .filter((each) => each !== "")
    .reduce((clean, each) => clean.replaceAll(anyCase(each), "the repository"), text)
    .replaceAll(/\b(?:https?|ssh|file):\/\/\S+/g, "the repository")
    .replaceAll(PROXY, "$1 the proxy");
}

const anyCase = (text: string) => new RegExp(text.replaceAll(/[\\^$.*+?()[\]{}|]/g, "\\$&"), "gi");
