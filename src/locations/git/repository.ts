/**
 * The view of one call on a remote repository: a bare repository in a private folder, with the heads of some branches and
 * their trees. The contents of files are left out where the other side can do that.
 */
import { readdir, readFile, stat, statfs } from "node:fs/promises";
import { join } from "node:path";
import type { Writable } from "node:stream";
import { LocationError, type ParcelFile } from "../location.ts";
import { checkedBytes } from "../parcel-bytes.ts";
import { type Git, GitFailed, writePiece } from "./git-process.ts";

export interface RepositoryAddress {
  /** A path of this machine, or an address for ssh, http or https. */
  readonly address: string;
  readonly isLocal: boolean;
  /** The value of the header `Authorization`; null without a password. */
  readonly authorization: string | null;
}

/** An entry of a tree. */
export interface TreeEntry {
  readonly type: string;
  readonly mode: string;
  readonly id: string;
}

interface Listed {
  /** Whether the other side shows nothing at all. A repository with a commit has a `HEAD`. */
  readonly isEmpty: boolean;
  /** The commits of the branches that are there. */
  readonly heads: Map<string, string>;
  /** The names that are a folder of other branches, or lie below another branch: git cannot make them. */
  readonly blocked: ReadonlySet<string>;
}

export interface NewCommit {
  readonly parent: string;
  readonly message: string;
  readonly author: { readonly name: string; readonly email: string };
  readonly dateMs: number;
  /** The ids of blobs by their paths. */
  readonly files: ReadonlyMap<string, string>;
}

const PARTIAL = "git -c uploadpack.allowFilter=true upload-pack";
/** Without these the other side, which runs on this machine, holds a file of up to 512 MB in memory as a whole. */
const STREAMED =
  "git -c receive.unpackLimit=1 -c core.bigFileThreshold=16m -c pack.threads=1 receive-pack";
const REFS = "refs/batchd/";
const NEW_COMMIT = "refs/batchd-new/commit";
const SHA256_DIGITS = 64;
/** What a pack may have beside the content of a file: compression makes random bytes a little longer. */
const PACK_SHARE = 0.01;
const PACK_BYTES = 64 * 1024;
/** What a fetch may take of the room that is free. Two deliveries to a place may fetch at once, and the rest is for all else. */
const ROOM_SHARE = 0.25;

/** What was to be fetched has more bytes than allowed. */
export class TooLarge extends Error {
  override readonly name = "TooLarge";
}

export class Repository {
  readonly #git: Git;
  readonly #folder: string;
  readonly #config: Readonly<Record<string, string>>;
  readonly #signal: AbortSignal;
  #addedBytes = 0;

  private constructor(
    git: Git,
    folder: string,
    { config, signal }: { config: Readonly<Record<string, string>>; signal: AbortSignal },
  ) {
    this.#git = git;
    this.#folder = folder;
    this.#config = config;
    this.#signal = signal;
  }

  /**
   * Asks for the branches that there are, and fetches their heads. Returns the view, the commits by the names of their
   * branches, and the names that no branch can have.
   */
  static async open(
    git: Git,
    options: {
      readonly remote: RepositoryAddress;
      readonly folder: string;
      readonly branches: readonly string[];
      readonly signal: AbortSignal;
    },
  ): Promise<{ repository: Repository } & Listed> {
    const { remote, folder, branches, signal } = options;
    const repository = new Repository(git, folder, { config: configOf(remote), signal });
    const { heads, ...listed } = await repository.#listHeads(remote, branches);
    const isSha256 = [...heads.values()].some((id) => id.length === SHA256_DIGITS);
    const format = isSha256 ? ["--object-format=sha256"] : [];
    await repository.#run(["init", "--quiet", "--bare", "--template=", ...format]);
    if (heads.size > 0) await repository.#fetch([...heads.keys()]);
    for (const branch of heads.keys()) heads.set(branch, await repository.#resolve(branch));
    return { repository, heads, ...listed };
  }

  /** Returns the entry at a path; null if there is none. */
  async entryAt(commit: string, path: string): Promise<TreeEntry | null> {
    const listed = await this.#run(["ls-tree", "-z", "--full-tree", commit, "--", path]);
    const [, mode, type, id] = /^(\d+) (\w+) ([0-9a-f]+)\t/.exec(listed) ?? [];
    if (mode === undefined || type === undefined || id === undefined) return null;
    return { mode, type, id };
  }

  /** Fetches the content, of which git does not know the size before. Throws {@link TooLarge} beyond so many bytes. */
  async sizeOf(blob: string, maxBytes = Number.POSITIVE_INFINITY): Promise<number> {
    const maxPackBytes = maxBytes + maxBytes * PACK_SHARE + PACK_BYTES;
    return Number(await this.#runWithin(maxPackBytes, ["cat-file", "-s", blob]));
  }

  contentOf(blob: string): AsyncIterable<Buffer> {
    return this.#git.stream(this.#given(["cat-file", "blob", blob]));
  }

  /** Returns the values of a trailer in the message of a commit. */
  async trailersOf(commit: string, name: string): Promise<readonly string[]> {
    const format = `--format=%(trailers:key=${name},valueonly)`;
    const listed = await this.#run(["show", "--no-patch", format, commit, "--"]);
    return listed.split("\n").filter((value) => value !== "");
  }

  /** Stores the files, and returns the ids of their blobs in the same order. */
  async addBlobs(files: readonly ParcelFile[]): Promise<readonly string[]> {
    const marks = "marks";
    this.#addedBytes = files.reduce((sum, { bytes }) => sum + bytes, 0);
    await this.#import([`--export-marks=${marks}`], async (input) => {
      for (const [i, file] of files.entries()) {
        await writePiece(input, `blob\nmark :${i + 1}\ndata ${file.bytes}\n`);
        for await (const piece of checkedBytes(file)) await writePiece(input, piece);
        await writePiece(input, "\n");
      }
    });
    const ids = await readFile(join(this.#folder, marks), "utf8");
    return files.map((_, i) => idOf(ids, i + 1));
  }

  /** Makes a commit that adds the files to those of its parent. Nothing is published. */
  async commit({ parent, message, author, dateMs, files }: NewCommit): Promise<string> {
    const who = `${author.name} <${author.email}> ${Math.floor(dateMs / 1_000)} +0000`;
    await this.#import([], async (input) => {
      const text = `data ${Buffer.byteLength(message)}\n${message}\n`;
      await writePiece(input, `commit ${NEW_COMMIT}\ncommitter ${who}\n${text}from ${parent}\n`);
      for (const [path, id] of files) await writePiece(input, `M 100644 ${id} ${quoted(path)}\n`);
    });
    return (await this.#run(["rev-parse", "--verify", NEW_COMMIT])).trim();
  }

  /**
   * Moves a branch of the remote repository from `expected` to a commit; null: makes it. Returns false if the branch is
   * elsewhere by now, or the base branch.
   */
  async publish(branch: string, commit: string, expected: string | null): Promise<boolean> {
    const ref = `refs/heads/${branch}`;
    const lease = `--force-with-lease=${ref}:${expected ?? ""}`;
    try {
      // Without its progress a push says nothing while it sends, and a large one would be taken for dead.
      const args = ["push", "--progress", "--no-verify", lease, "origin", `${commit}:${ref}`];
      await this.#git.run({
        ...this.#given(args),
        isOnline: true,
        silentBytes: this.#addedBytes,
      });
      return true;
    } catch (error) {
      if (error instanceof GitFailed && hasMoved(error.complaint)) return false;
      throw error;
    }
  }

  async #listHeads({ address }: RepositoryAddress, branches: readonly string[]): Promise<Listed> {
    const wanted = branches.flatMap((branch) => [branch, `${branch}/*`, ...foldersAbove(branch)]);
    const refs = [...new Set(wanted)].map((branch) => `refs/heads/${branch}`);
    // There is no repository yet, whose settings could name the remote.
    const args = ["ls-remote", "--quiet", "--", address, "HEAD", ...refs];
    const listed = await this.#git.run({ ...this.#given(args), isOnline: true });
    const heads = new Map<string, string>();
    const others: string[] = [];
    for (const line of listed.split("\n")) {
      const [, id, name] = /^([0-9a-f]{40,64})\trefs\/heads\/(.+)$/.exec(line) ?? [];
      if (id === undefined || name === undefined) continue;
      if (branches.includes(name)) heads.set(name, id);
      else others.push(name);
    }
    const isBlocked = (branch: string) =>
      others.some((name) => name.startsWith(`${branch}/`) || branch.startsWith(`${name}/`));
    return { heads, isEmpty: listed === "", blocked: new Set(branches.filter(isBlocked)) };
  }

  /** The other side may not know how to leave contents out, or send without end. That must not fill the disk. */
  async #fetch(branches: readonly string[]): Promise<void> {
    const refs = branches.map((branch) => `+refs/heads/${branch}:${REFS}${branch}`);
    const options = ["--depth=1", "--no-tags", "--filter=blob:none", "--no-write-fetch-head"];
    const args = ["fetch", "--progress", ...options, "origin", ...refs];
    const { blocks, bavail, bsize } = await statfs(this.#folder);
    // Some file systems do not say how large they are.
    const maxBytes = blocks === 0 ? Number.POSITIVE_INFINITY : bavail * bsize * ROOM_SHARE;
    await this.#runWithin(maxBytes, args).catch((error: unknown) => {
      if (!(error instanceof TooLarge)) throw error;
      const words = "the repository sends more than there is room for on the disk of the server";
      throw new LocationError("unavailable", words, { cause: error });
    });
  }

  /** Asks the other side. Git does not always say that a helper has ended at the limit. The file that it leaves does. */
  async #runWithin(maxFileBytes: number, args: readonly string[]): Promise<string> {
    const packs = join(this.#folder, "objects", "pack");
    const former = new Set(await readdir(packs));
    try {
      return await this.#git.run({ ...this.#given(args), isOnline: true, maxFileBytes });
    } catch (error) {
      const left = error instanceof GitFailed ? await readdir(packs) : [];
      for (const name of left.filter((each) => !former.has(each))) {
        const { size } = await stat(join(packs, name));
        if (size >= maxFileBytes)
          throw new TooLarge("the other side sends too much", { cause: error });
      }
      throw error;
    }
  }

  async #resolve(branch: string): Promise<string> {
    return (await this.#run(["rev-parse", "--verify", `${REFS}${branch}^{commit}`])).trim();
  }

  /** A stream that ends early leaves nothing: `done` has to come. */
  async #import(options: readonly string[], write: (input: Writable) => Promise<void>) {
    const feed = async (input: Writable) => {
      await write(input);
      await writePiece(input, "done\n");
    };
    const args = ["fast-import", "--quiet", "--force", "--done", "--date-format=raw", ...options];
    await this.#git.run({ ...this.#given(args), silentBytes: this.#addedBytes, feed });
  }

  #run(args: readonly string[]): Promise<string> {
    return this.#git.run(this.#given(args));
  }

  #given(args: readonly string[]) {
    return { args, folder: this.#folder, config: this.#config, signal: this.#signal };
  }
}

const foldersAbove = (branch: string): string[] =>
  branch
    .split("/")
    .slice(0, -1)
    .map((_, i, parts) => parts.slice(0, i + 1).join("/"));

function idOf(marks: string, number: number): string {
  const id = new RegExp(`^:${number} ([0-9a-f]+)$`, "m").exec(marks)?.[1];
  if (id === undefined) throw new Error(`git has made no blob ${number}`);
  return id;
}

/** The remote is known as `origin`, also to the fetches that git makes by itself for missing contents. */
const configOf = ({ address, isLocal, authorization }: RepositoryAddress) => ({
  "remote.origin.url": address,
  "remote.origin.promisor": "true",
  "remote.origin.partialclonefilter": "blob:none",
  ...(isLocal && {
    "remote.origin.uploadpack": PARTIAL,
    "remote.origin.receivepack": STREAMED,
  }),
  ...(authorization !== null && {
    [`http.${new URL(address).origin}/.extraHeader`]: `Authorization: ${authorization}`,
  }),
});

/**
 * The words of a hook, which come from the other side, say nothing of that. A shallow update is one from a commit of the base
 * branch that the other side does not have any more.
 */
const hasMoved = (complaint: string) =>
  !/hook declined/.test(complaint) &&
  /stale info|fetch first|non-fast-forward|reference already exists|cannot lock ref|shallow update/.test(
    complaint,
  );

/** Paths are quoted as in C, so any character may be in them. */
const quoted = (path: string) => `"${path.replaceAll(/["\\]/g, "\\$&")}"`;
