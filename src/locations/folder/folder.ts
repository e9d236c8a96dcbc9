/**
 * A folder as a location, such as a mounted share.
 *
 * A parcel is written to a temporary folder beside its own, so on the same file system. Every file is synced and read
 * again, and then one rename makes the parcel visible. A batch that was delivered before keeps its folder: files that are
 * new or differ are renamed into it one by one, the manifest last. Each of them is whole at every moment.
 *
 * Nothing outside of the folder can be reached, also not over symbolic links that change at the same time
 * (`open-folder.ts`). Only regular files are read: the open of a device can have effects of its own.
 */
import type { Stats } from "node:fs";
import { realpath } from "node:fs/promises";
import { join, relative, resolve, sep } from "node:path";
import { randomHexId } from "../../batch/random-id.ts";
import { orNull, writeStream } from "../../blobs/file-system.ts";
import type { Clock } from "../../clock.ts";
import {
  assertParcel,
  type Delivered,
  type DeliveryCall,
  type Location,
  type LocationCall,
  LocationError,
  type LocationFile,
  type Parcel,
  type ParcelFile,
  partsOf,
} from "../location.ts";
import type { LocationPath } from "../location-path.ts";
import { checkedBytes, isContentOf, untilAborted } from "../parcel-bytes.ts";
import { folderError, writeError } from "./folder-error.ts";
import { OpenFolder } from "./open-folder.ts";
import { type OpenFile, Operations } from "./operations.ts";

const READ_BYTES = 512 * 1024;
/** An attempt ends within hours, so what did not change for so long belongs to a dead one. */
const FORGOTTEN_MS = 24 * 60 * 60 * 1000;

export interface FolderSettings {
  readonly name: string;
  readonly path: string;
}

export interface FolderDeps {
  readonly clock: Pick<Clock, "nowMs" | "after">;
}

/** What is saved of an attempt: the folder in which it makes its temporary one. */
interface Begun extends Pick<Parcel, "batchId" | "deliveryId"> {
  readonly above: readonly string[];
}

export class FolderLocation implements Location {
  readonly kind = "folder";
  readonly name: string;
  readonly #root: string;
  readonly #clock: FolderDeps["clock"];
  readonly #operations: Operations;

  constructor({ name, path }: FolderSettings, { clock }: FolderDeps) {
    this.name = name;
    this.#root = resolve(path);
    this.#clock = clock;
    this.#operations = new Operations(name, clock);
  }

  async open(path: LocationPath, { signal }: LocationCall): Promise<LocationFile> {
    return this.#translated(path, async () => {
      signal.throwIfAborted();
      const parts = await this.#withoutLinks(path);
      await using folder = await this.#enter(parts.slice(0, -1));
      const file = (await folder?.openFile(parts.at(-1) ?? "")) ?? null;
      if (file === null) throw this.#missing(path);
      try {
        const info = await file.stat();
        if (!info.isFile()) {
          throw new LocationError("refused", `${path} in ${this.name} is not a regular file`);
        }
        const content = readUnchanged(file, { path, info, signal });
        const close = () => file.close();
        return { bytes: info.size, revision: null, content, [Symbol.asyncDispose]: close };
      } catch (error) {
        await file.close();
        throw error;
      }
    });
  }

  deliver(parcel: Parcel, { signal, progress }: DeliveryCall): Promise<Delivered> {
    assertParcel(parcel);
    const parts = partsOf(parcel);
    const deliver = async () => {
      await using root = await this.#openRoot();
      await using parent = await makeAll(root, parts.slice(0, -1));
      await this.#removeLeftovers(parent, parcel);
      if (!(await isThere(parent, parcel, signal))) {
        // What a killed process leaves is known before it is there.
        const { batchId, deliveryId } = parcel;
        const begun: Begun = { above: parts.slice(0, -1), batchId, deliveryId };
        await progress.save(JSON.stringify(begun));
        await publish(parent, parcel, signal);
      }
      return { address: join(this.#root, ...parts) };
    };
    return deliver().catch((error: unknown) => {
      throw writeError(error, `${parts.join("/")} in ${this.name}`);
    });
  }

  /** A failed attempt has removed its own files, and a killed one has not. */
  discard(saved: string): Promise<void> {
    const { above, ...of } = JSON.parse(saved) as Begun;
    return this.#translated(of.batchId, async () => {
      await using parent = await this.#enter(above);
      if (parent !== null) await this.#removeLeftovers(parent, of);
    });
  }

  /**
   * Removes temporary folders of dead attempts. Another delivery of the batch may be under way by another name of the folder.
   * An attempt that seems dead may be alive, as its process or this one stood still. So a folder gets another name first: what
   * is being emptied can no longer become the parcel.
   */
  async #removeLeftovers(parent: OpenFolder, of: Omit<Begun, "above">): Promise<void> {
    const forgottenMs = this.#clock.nowMs() - FORGOTTEN_MS;
    const left: string[] = [];
    for await (const { name } of parent.list()) {
      if (!name.startsWith(temporaryBeginning(of))) continue;
      const isOwn = name.startsWith(temporaryNameBeginning(of));
      if (isOwn || (await parent.changedBefore(name, forgottenMs))) left.push(name);
    }
    for (const name of left) {
      if (!name.endsWith(LEFT)) await orNull(parent.move(name, parent, name + LEFT), "ENOENT");
      await parent.removeFolder(name.endsWith(LEFT) ? name : name + LEFT);
    }
  }

  /**
   * Returns the parts of the path that a link within the folder stands for. This is only a hint: what is opened then
   * may not be a link.
   */
  async #withoutLinks(path: LocationPath): Promise<string[]> {
    const root = await orNull(this.#realpath(this.#root), "ENOENT");
    if (root === null) throw this.#missingRoot();
    const found = await orNull(this.#realpath(join(root, path)), "ENOENT", "ENOTDIR");
    if (found === null) throw this.#missing(path);
    const below = relative(root, found);
    if (below === "" || below === ".." || below.startsWith(`..${sep}`)) {
      throw new LocationError("refused", `${path} leads out of ${this.name}`);
    }
    return below.split(sep);
  }

  #realpath(path: string): Promise<string> {
    return this.#operations.run(() => realpath(path));
  }

  async #openRoot(): Promise<OpenFolder> {
    const opening = OpenFolder.root(this.#root, this.#operations);
    const root = await orNull(opening, "ENOENT", "ENOTDIR");
    if (root === null) throw this.#missingRoot();
    return root;
  }

  /** Opens a folder below this one; null for a missing one. */
  async #enter(parts: readonly string[]): Promise<OpenFolder | null> {
    let folder = await this.#openRoot();
    for (const part of parts) {
      await using above = folder;
      const next = await above.enter(part);
      if (next === null) return null;
      folder = next;
    }
    return folder;
  }

  #missing(path: string): LocationError {
    return new LocationError("not_found", `there is no file ${path} in ${this.name}`);
  }

  /** A share that is not mounted may come back. */
  #missingRoot(): LocationError {
    return new LocationError("unavailable", `the folder of ${this.name} is not there`);
  }

  #translated<T>(path: string, act: () => Promise<T>): Promise<T> {
    return act().catch((error: unknown) => {
      throw folderError(error, `${path} in ${this.name}`);
    });
  }
}

interface Reading {
  readonly path: string;
  readonly bytes: number;
  readonly signal: AbortSignal;
}

/** Somebody may still write the file. What ends between two lines would look whole. */
async function* readUnchanged(
  file: OpenFile,
  { path, info, signal }: Omit<Reading, "bytes"> & { readonly info: Stats },
) {
  yield* readChunks(file, { path, bytes: info.size, signal });
  const { size, mtimeMs } = await file.stat();
  if (size === info.size && mtimeMs === info.mtimeMs) return;
  throw new LocationError("unavailable", `${path} changed while it was read`);
}

async function* readChunks(file: OpenFile, { path, bytes, signal }: Reading) {
  for (let at = 0; at < bytes; ) {
    signal.throwIfAborted();
    const buffer = Buffer.allocUnsafeSlow(Math.min(READ_BYTES, bytes - at));
    const { bytesRead } = await file.read(buffer, at).catch((error: unknown) => {
      throw folderError(error, path);
    });
    if (bytesRead === 0) {
      throw new LocationError("unavailable", `${path} became shorter while it was read`);
    }
    at += bytesRead;
    yield buffer.subarray(0, bytesRead);
  }
}

async function makeAll(root: OpenFolder, parts: readonly string[]): Promise<OpenFolder> {
  let folder = await root.enterOrMake(".");
  for (const part of parts) {
    await using above = folder;
    folder = await above.enterOrMake(part);
  }
  return folder;
}

/** What the name of a temporary folder ends in once another attempt removes it. */
const LEFT = "-left";
const temporaryBeginning = ({ batchId }: Pick<Parcel, "batchId">) => `.batchd-${batchId}-`;
const temporaryNameBeginning = (of: Pick<Parcel, "batchId" | "deliveryId">) =>
  `${temporaryBeginning(of)}${of.deliveryId}-`;

/** Whether the folder of the batch has all files of the parcel, with the same bytes. */
async function isThere(
  parent: OpenFolder,
  { batchId, files }: Parcel,
  signal: AbortSignal,
): Promise<boolean> {
  await using folder = await parent.enter(batchId);
  if (folder === null) return false;
  for (const file of files) if (!(await holds(folder, file, signal))) return false;
  return true;
}

async function holds(folder: OpenFolder, expected: ParcelFile, signal: AbortSignal) {
  const { name, bytes } = expected;
  // A link is not the file, and is replaced.
  await using file = await orNull(folder.openFile(name), "ELOOP");
  const info = await file?.stat();
  if (file === null || info === undefined || !info.isFile() || info.size !== bytes) return false;
  return await isContentOf(expected, readChunks(file, { path: name, bytes, signal }));
}

async function publish(parent: OpenFolder, parcel: Parcel, signal: AbortSignal): Promise<void> {
  const temporary = temporaryNameBeginning(parcel) + randomHexId();
  try {
    await using folder = await parent.enterOrMake(temporary);
    for (const file of parcel.files) {
      signal.throwIfAborted();
      await write(folder, file, signal);
    }
    await folder.sync();
    const isNew = await orNull(
      parent.move(temporary, parent, parcel.batchId).then(() => true),
      "ENOTEMPTY",
      "EEXIST",
    );
    if (isNew === null) await addTo(parent, folder, parcel);
  } finally {
    await parent.removeFolder(temporary);
    await parent.removeFolder(temporary + LEFT);
  }
  await parent.sync();
}

async function write(folder: OpenFolder, file: ParcelFile, signal: AbortSignal): Promise<void> {
  {
    await using handle = await folder.createFile(file.name);
    await writeStream(handle, untilAborted(checkedBytes(file), signal));
    await handle.sync();
  }
  if (!(await holds(folder, file, signal))) {
    throw new LocationError("unavailable", `${file.name} was not stored as it was sent`);
  }
}

/** Adds the files to the folder of an earlier delivery. The manifest comes once all others are durable. */
async function addTo(parent: OpenFolder, from: OpenFolder, parcel: Parcel): Promise<void> {
  await using folder = await parent.enterOrMake(parcel.batchId);
  for (const [i, { name }] of parcel.files.entries()) {
    if (i === parcel.files.length - 1) await folder.sync();
    await from.move(name, folder, name).catch((error: unknown) => {
      throw writeError(error, `${parcel.batchId}/${name}`);
    });
  }
  await folder.sync();
}
