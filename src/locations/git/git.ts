/**
 * A git repository as a location. A parcel becomes one commit on a branch of its own, made from a pinned commit of the base
 * branch, and one push publishes it. The base branch never moves.
 *
 * The commit is made in a private bare repository without a work tree, so nothing that the base branch contains (filters,
 * hooks, submodules) has an effect. A repeated delivery finds its branch by the name, and by the `Batch-Id` of its head.
 */
import type { Clock } from "../../clock.ts";
import {
  BATCH_TRAILER,
  branchNames,
  commitMessage,
  committed,
  committedParts,
  MAX_RACES,
} from "../commits.ts";
import {
  assertParcel,
  type Delivered,
  type DeliveryCall,
  type Location,
  LocationError,
  type LocationFile,
  type OpenCall,
  type Parcel,
} from "../location.ts";
import type { LocationPath } from "../location-path.ts";
import { gitError } from "./git-error.ts";
import type { Git } from "./git-process.ts";
import { Repository, type RepositoryAddress, TooLarge } from "./repository.ts";
import type { WorkFolders } from "./work-folders.ts";

export interface GitSettings {
  readonly name: string;
  readonly remote: RepositoryAddress;
  readonly base: string;
  readonly author: { readonly name: string; readonly email: string };
  /** The largest file that the other side takes. */
  readonly maxFileBytes: number | null;
}

export interface GitDeps {
  readonly git: Git;
  readonly folders: WorkFolders;
  readonly clock: Pick<Clock, "nowMs">;
}

const FILE_MODES = ["100644", "100755"];
/** Such a name is the folder `.git` on some file systems, and servers refuse it. */
const RESERVED = /(?:^|\/)git~\d+(?:\/|$)/i;

export class GitLocation implements Location {
  readonly kind = "git";
  readonly name: string;
  readonly #settings: GitSettings;
  readonly #deps: GitDeps;

  constructor(settings: GitSettings, deps: GitDeps) {
    this.name = settings.name;
    this.#settings = settings;
    this.#deps = deps;
  }

  async open(path: LocationPath, { signal, maxBytes }: OpenCall): Promise<LocationFile> {
    const { folders } = this.#deps;
    const folder = await folders.make();
    const close = () => folder[Symbol.asyncDispose]();
    try {
      const { repository, base } = await this.#view(folder.path, [], signal);
      const entry = await repository.entryAt(base, path);
      if (entry === null) {
        throw new LocationError("not_found", `there is no file ${path} in ${this.name}`);
      }
      if (!FILE_MODES.includes(entry.mode)) {
        throw new LocationError("refused", `${path} in ${this.name} is not a regular file`);
      }
      const bytes = await repository.sizeOf(entry.id, maxBytes);
      const content = this.#translatedContent(repository.contentOf(entry.id), path);
      return { bytes, revision: base, content, [Symbol.asyncDispose]: close };
    } catch (error) {
      await close();
      if (error instanceof TooLarge) {
        const words = `${path} in ${this.name} has more than the ${maxBytes} bytes that are taken`;
        throw new LocationError("refused", words);
      }
      throw this.#translated(error, path);
    }
  }

  async deliver(parcel: Parcel, { signal }: DeliveryCall): Promise<Delivered> {
    assertParcel(parcel);
    this.#assertFits(parcel);
    try {
      await using folder = await this.#deps.folders.make();
      for (let race = 1; ; race++) {
        const delivered = await this.#attempt(parcel, folder.path, signal);
        if (delivered !== null) return delivered;
        if (race === MAX_RACES) {
          throw new LocationError("unavailable", `the branches of ${this.name} keep changing`);
        }
      }
    } catch (error) {
      throw this.#translated(error, parcel.batchId);
    }
  }

  /** An attempt publishes everything or nothing. */
  async discard(): Promise<void> {}

  /** Returns null if the branch was changed by somebody else between look and push. */
  async #attempt(parcel: Parcel, folder: string, signal: AbortSignal): Promise<Delivered | null> {
    const names = branchNames(parcel);
    const { repository, base, heads, blocked } = await this.#view(folder, names, signal);
    const ids = await repository.addBlobs(parcel.files);
    const above = committedParts(parcel).join("/");
    const files = new Map(parcel.files.map(({ name }, i) => [`${above}/${name}`, ids[i] ?? ""]));
    const candidates = [[this.#settings.base, base] as const, ...heads];
    for (const [branch, head] of candidates) {
      if (await holds(repository, head, files)) return committed(branch, head);
    }
    const own = await this.#ownBranch(repository, heads, parcel);
    const branch = own ?? names.find((name) => !heads.has(name) && !blocked.has(name));
    if (branch === undefined) {
      const words = `all names of branches for ${parcel.batchId} in ${this.name} are taken`;
      throw new LocationError("refused", words);
    }
    const expected = heads.get(branch) ?? null;
    await this.#assertFolders(repository, expected ?? base, above);
    const { author } = this.#settings;
    const commit = await repository.commit({
      parent: expected ?? base,
      message: commitMessage(parcel),
      author,
      files,
      dateMs: this.#deps.clock.nowMs(),
    });
    const isPublished = await repository.publish(branch, commit, expected);
    return isPublished ? committed(branch, commit) : null;
  }

  /** Returns the branch of an earlier delivery of the batch. */
  async #ownBranch(repository: Repository, heads: ReadonlyMap<string, string>, parcel: Parcel) {
    for (const [branch, head] of heads) {
      const batches = await repository.trailersOf(head, BATCH_TRAILER);
      if (batches.includes(parcel.batchId)) return branch;
    }
    return null;
  }

  async #view(folder: string, branches: readonly string[], signal: AbortSignal) {
    const { base: baseBranch, remote } = this.#settings;
    const { repository, heads, blocked, isEmpty } = await Repository.open(this.#deps.git, {
      remote,
      folder,
      signal,
      branches: [baseBranch, ...branches],
    });
    // Git takes the page of a proxy for a repository without a branch.
    if (isEmpty) {
      const words = `${this.name} shows no branch: it is empty, or another server answers for it`;
      throw new LocationError("unavailable", words);
    }
    const base = heads.get(baseBranch);
    if (base === undefined) {
      throw new LocationError("refused", `there is no branch ${baseBranch} in ${this.name}`);
    }
    if (!branches.includes(baseBranch)) heads.delete(baseBranch);
    return { repository, base, heads, blocked };
  }

  /** Refuses a path through a file, a link or a submodule. A commit would put a folder in its place. */
  async #assertFolders(repository: Repository, commit: string, path: string): Promise<void> {
    const parts = path.split("/");
    for (const [i] of parts.entries()) {
      const folder = parts.slice(0, i + 1).join("/");
      const entry = await repository.entryAt(commit, folder);
      if (entry === null) return;
      if (entry.type === "tree") continue;
      throw new LocationError("refused", `${folder} in ${this.name} is not a folder`);
    }
  }

  #assertFits({ files, folder }: Parcel): void {
    const { maxFileBytes } = this.#settings;
    if (folder !== null && RESERVED.test(folder)) {
      throw new LocationError("refused", `${folder} is not a path that repositories take`);
    }
    const tooLarge = files.find(({ bytes }) => bytes > (maxFileBytes ?? Number.POSITIVE_INFINITY));
    if (tooLarge === undefined) return;
    throw new LocationError(
      "refused",
      `${tooLarge.name} has ${tooLarge.bytes} bytes, and ${this.name} takes files of at most ${maxFileBytes}`,
    );
  }

  async *#translatedContent(content: AsyncIterable<Buffer>, path: string) {
    try {
      yield* content;
    } catch (error) {
      throw this.#translated(error, path);
    }
  }

  #translated(error: unknown, what: string): unknown {
    return gitError(error, `${what} in ${this.name}`, this.#settings.remote.address);
  }
}

/** Whether a commit has all of these files with the same content. */
async function holds(
  repository: Repository,
  commit: string,
  files: ReadonlyMap<string, string>,
): Promise<boolean> {
  for (const [path, id] of files) {
    const entry = await repository.entryAt(commit, path);
    if (entry?.id !== id) return false;
  }
  return true;
}
