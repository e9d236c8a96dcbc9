/**
 * Asks the file system about the locations of a configuration, and the folder of its audit log: whether their folders are there,
 * and whether a location lies in the data folder over a link. A share whose server is gone may never answer. So no question may be
 * asked on the event loop, and each counts among the operations of locations, which leave threads for everything else.
 */
import { realpath, stat } from "node:fs/promises";
import { dirname, resolve } from "node:path";
import { type Clock, within } from "../clock.ts";
import type { ConfigResult } from "../config/config.ts";
import { isWithin, locationProblems, placeOnDisk } from "../config/locations.ts";
import type { Config } from "../config/schema.ts";
import { onSharedThread } from "../locations/folder/operations.ts";

/** A share that answers at all answers sooner. A start and a reload wait for so long. */
const LOOK_WITHIN_MS = 2_000;

type Found =
  | { readonly kind: "there"; readonly realPath: string; readonly isFolder: boolean }
  | { readonly kind: "missing" | "silent" | "not_asked" };

export interface LookedAt {
  readonly loaded: ConfigResult;
  /** What an operator should know of the folders, one sentence each. */
  readonly warnings: readonly string[];
}

/** The path whose question has no answer yet. There is one at a time, because each keeps a thread. */
let unanswered: string | null = null;

/** Refuses a configuration with a location in the data folder, and warns of folders that are not there. */
export async function lookAtFolders(
  loaded: ConfigResult,
  clock: Pick<Clock, "after">,
): Promise<LookedAt> {
  if (!loaded.ok) return { loaded, warnings: [] };
  const { config } = loaded;
  const named = foldersIn(config);
  if (config.locations.length + named.length === 0) return { loaded, warnings: [] };
  const places = [
    ...config.locations.flatMap((location) => placeOnDisk(location) ?? []),
    ...named.map(({ path }) => path),
  ];
  const found = new Map<string, Found>();
  for (const path of new Set([config.data_dir, ...places])) {
    found.set(path, await look(path, clock));
  }
  const problems = locationProblems(config, (path) => {
    const at = found.get(path);
    return at?.kind === "there" ? at.realPath : resolve(path);
  });
  if (problems.length > 0) return { loaded: { ok: false, problems }, warnings: [] };
  return { loaded, warnings: folderWarnings(named, found) };
}

interface Folder {
  readonly path: string;
  readonly whose: string;
}

function foldersIn({ locations, audit, data_dir: dataDir }: Config): Folder[] {
  const folders = locations.flatMap((location) =>
    location.kind === "folder"
      ? [{ path: location.path, whose: `the location ${location.name}` }]
      : [],
  );
  if (audit?.file === undefined) return folders;
  const path = dirname(audit.file);
  // The first start makes the data folder, and what it lies in.
  return isWithin(resolve(dataDir), resolve(path))
    ? folders
    : [...folders, { path, whose: "audit.file" }];
}

/** A share may be mounted later, so a missing folder refuses no start. */
function folderWarnings(named: readonly Folder[], found: ReadonlyMap<string, Found>): string[] {
  return named.flatMap(({ path, whose }) => {
    const at = found.get(path);
    if (at?.kind === "silent") {
      return [`the folder ${path} of ${whose} does not answer: is its server away?`];
    }
    if (at?.kind === "not_asked" || (at?.kind === "there" && at.isFolder)) return [];
    return [`there is no folder ${path} for ${whose}: is a share not mounted?`];
  });
}

async function look(path: string, clock: Pick<Clock, "after">): Promise<Found> {
  if (unanswered !== null) return { kind: unanswered === path ? "silent" : "not_asked" };
  const answer = onSharedThread(() => ask(path));
  unanswered = path;
  void answer.then(() => {
    unanswered = null;
  });
  return within(clock, LOOK_WITHIN_MS, { work: answer, late: { kind: "silent" } as const });
}

/** A share whose server or program has gone is there, and fails (`ESTALE`, `ENOTCONN`). */
async function ask(path: string): Promise<Found> {
  try {
    const realPath = await realpath(path);
    return { kind: "there", realPath, isFolder: (await stat(realPath)).isDirectory() };
  } catch {
    return { kind: "missing" };
  }
}
