/**
 * A repository on an Oxen server as a location. A parcel becomes one commit on a branch of its own, made from a pinned
 * commit of the base branch: new branch, workspace, files, commit. The commit makes it visible.
 *
 * A crash before the commit leaves a workspace, and a branch that is still at the base. The next attempt knows that branch
 * by what it has saved. A branch with the results is known by the `Batch-Id` in the message of its head.
 */
import { randomUUID } from "node:crypto";
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
  type LocationCall,
  LocationError,
  type LocationFile,
  type Parcel,
  type ParcelFile,
} from "../location.ts";
import type { LocationPath } from "../location-path.ts";
import { isContentOf, untilAborted } from "../parcel-bytes.ts";
import { type OxenAddress, OxenApi, unreachable } from "./oxen-api.ts";
import { upload } from "./upload.ts";

export interface OxenSettings extends OxenAddress {
  readonly name: string;
  readonly base: string;
  readonly author: { readonly name: string; readonly email: string };
}

const COMMIT_ID = /^[0-9a-f]{1,64}$/;

/** What is saved of an attempt: its workspace, and the branch that it has made at the base. */
interface Begun {
  readonly workspace: string;
  /** It is null when an earlier delivery made the branch. */
  readonly made: { readonly branch: string; readonly base: string } | null;
}

interface Branching extends LocationCall {
  /** The branch that a former attempt has made. */
  readonly made: Begun["made"];
  readonly save: (made: Begun["made"]) => Promise<void>;
}

interface Committing extends LocationCall {
  readonly branch: string;
  readonly workspace: string;
}

export class OxenLocation implements Location {
  readonly kind = "oxen";
  readonly name: string;
  readonly #settings: OxenSettings;
  readonly #api: OxenApi;

  constructor(settings: OxenSettings) {
    this.name = settings.name;
    this.#settings = settings;
    this.#api = new OxenApi(settings);
  }

  async open(path: LocationPath, { signal }: LocationCall): Promise<LocationFile> {
    const revision = await this.#base(signal);
    const found = await this.#api.open(revision, path, signal);
    if (found === null) {
      throw new LocationError("not_found", `there is no file ${path} in ${this.name}`);
    }
    const { bytes, body } = found;
    const content = wholeContent(body, { bytes, signal });
    const close = async () => void body.on("error", () => {}).destroy();
    return { bytes, revision, content, [Symbol.asyncDispose]: close };
  }

  async deliver(parcel: Parcel, { signal, progress }: DeliveryCall): Promise<Delivered> {
    assertParcel(parcel);
    const former = progress.saved === null ? null : parseBegun(progress.saved);
    if (former !== null) await this.#removeWorkspace(former.workspace, signal);
    const base = await this.#base(signal);
    const workspace = newWorkspace(parcel);
    const found = await this.#findOrMakeBranch(parcel, base, {
      made: former?.made ?? null,
      save: (made) => progress.save(JSON.stringify({ workspace, made } satisfies Begun)),
      signal,
    });
    if (found.isDelivered) return committed(found.branch, found.head);
    const { branch } = found;
    const commit = await this.#commit(parcel, { branch, workspace, signal });
    if (!(await this.#holds(parcel, commit, signal))) {
      throw new LocationError("refused", `${this.name} does not have what was sent`);
    }
    return committed(branch, commit);
  }

  async discard(saved: string, { signal }: LocationCall): Promise<void> {
    const { workspace, made } = parseBegun(saved);
    await this.#removeWorkspace(workspace, signal);
    if (made === null) return;
    const head = await this.#headOf(made.branch, signal);
    // With a commit it has results, of this batch or a person.
    if (head !== made.base) return;
    const path = ["branches", ...made.branch.split("/")];
    await this.#api.ask({ method: "DELETE", path, expected: [404] }, signal);
  }

  /** The name of a branch may be taken in the moment between look and creation. Then there is another one. */
  async #findOrMakeBranch(
    parcel: Parcel,
    base: string,
    { signal, save, made: madeBefore }: Branching,
  ) {
    let made = madeBefore;
    for (let race = 1; ; race++) {
      const found = await this.#findBranch(parcel, made, signal);
      if (found.head !== null) {
        if (!found.isDelivered) await save(found.branch === made?.branch ? made : null);
        return found;
      }
      const { branch } = found;
      made = { branch, base };
      await save(made);
      const body = { new_name: branch, commit_id: base };
      try {
        await this.#api.ask({ method: "POST", path: ["branches"], body }, signal);
        return { branch, head: base, isDelivered: false } as const;
      } catch (error) {
        const isTaken = (await this.#headOf(branch, signal)) !== null;
        if (!isTaken || race === MAX_RACES) throw error;
        made = null;
        await save(made);
      }
    }
  }

  /** Uploads everything into a new workspace, and commits it to the branch. */
  async #commit(parcel: Parcel, { branch, workspace: id, signal }: Committing): Promise<string> {
    const body = { workspace_id: id, branch_name: branch };
    await this.#api.ask({ method: "PUT", path: ["workspaces"], body }, signal);
    const folder = committedParts(parcel);
    for (const file of parcel.files) await upload({ api: this.#api, id, folder, signal }, file);
    const commit = await this.#merge(id, branch, { message: commitMessage(parcel), signal });
    await this.#removeWorkspace(id, signal);
    return commit;
  }

  async #merge(
    id: string,
    branch: string,
    { message, signal }: { readonly message: string; readonly signal: AbortSignal },
  ): Promise<string> {
    const { name: author, email } = this.#settings.author;
    const body = { message, author, email };
    const asked = (verb: string) =>
      ({ method: "POST", path: ["workspaces", id, verb, ...branch.split("/")], body }) as const;
    const merged = await this.#api.ask({ ...asked("merge"), expected: [404] }, signal);
    // Older servers have another word for it.
    const answer = merged.status === 404 ? await this.#api.ask(asked("commit"), signal) : merged;
    return idIn(answer.body, "commit", "id");
  }

  async #removeWorkspace(id: string, signal: AbortSignal): Promise<void> {
    const asked = { method: "DELETE", path: ["workspaces", id], expected: [404] } as const;
    await this.#api.ask(asked, signal);
  }

  /** Finds the results, or else the branch for them: one of an earlier attempt or delivery, or a name that is free. */
  async #findBranch(parcel: Parcel, made: Begun["made"], signal: AbortSignal) {
    let free: string | null = null;
    let own: { readonly branch: string; readonly head: string } | null = null;
    for (const branch of branchNames(parcel)) {
      const head = await this.#headOf(branch, signal);
      if (head === null) {
        free ??= branch;
        continue;
      }
      const isBegun = made?.branch === branch && made.base === head;
      if (!isBegun && !(await this.#isOf(parcel, head, signal))) continue;
      if (await this.#holds(parcel, head, signal))
        return { branch, head, isDelivered: true } as const;
      own ??= { branch, head };
    }
    if (own !== null) return { ...own, isDelivered: false } as const;
    if (free !== null) return { branch: free, head: null, isDelivered: false } as const;
    const words = `all names of branches for ${parcel.batchId} in ${this.name} are taken`;
    throw new LocationError("refused", words);
  }

  async #isOf({ batchId }: Parcel, commit: string, signal: AbortSignal): Promise<boolean> {
    const { body } = await this.#api.ask({ method: "GET", path: ["commits", commit] }, signal);
    const { message } = ((body as { commit?: unknown } | null)?.commit ?? {}) as Record<
      string,
      unknown
    >;
    return (
      typeof message === "string" && message.split("\n").includes(`${BATCH_TRAILER}: ${batchId}`)
    );
  }

  async #holds(parcel: Parcel, commit: string, signal: AbortSignal): Promise<boolean> {
    const folder = committedParts(parcel).join("/");
    for (const file of parcel.files) {
      const found = await this.#api.open(commit, `${folder}/${file.name}`, signal);
      if (found === null || !(await isSame(found.body, file, signal))) return false;
    }
    return true;
  }

  async #base(signal: AbortSignal): Promise<string> {
    const { base } = this.#settings;
    const head = await this.#headOf(base, signal);
    if (head !== null) return head;
    throw new LocationError("refused", `there is no branch ${base} in ${this.name}`);
  }

  async #headOf(branch: string, signal: AbortSignal): Promise<string | null> {
    const path = ["branches", ...branch.split("/")];
    const { status, body } = await this.#api.ask({ method: "GET", path, expected: [404] }, signal);
    return status === 404 ? null : idIn(body, "branch", "commit_id");
  }
}

/**
 * Each attempt has a workspace of its own. One that stood still may go on beside the next one, and would commit what that one
 * has uploaded up to then.
 */
const newWorkspace = ({ deliveryId }: Parcel) => `batchd-${deliveryId}-${randomUUID()}`;

const parseBegun = (saved: string) => JSON.parse(saved) as Begun;

/** Returns the id of a commit in an answer. It becomes a part of addresses, so it must be nothing else. */
function idIn(body: unknown, object: string, key: string): string {
  const id = (
    (body as Record<string, unknown> | null)?.[object] as Record<string, unknown> | undefined
  )?.[key];
  if (typeof id === "string" && COMMIT_ID.test(id)) return id;
  throw new LocationError("unavailable", "the Oxen server answers without the id of a commit");
}

const isSame = (body: AsyncIterable<Buffer>, file: ParcelFile, signal: AbortSignal) =>
  isContentOf(file, body).catch((error: unknown) => {
    throw unreachable(error, signal);
  });

async function* wholeContent(
  body: AsyncIterable<Buffer>,
  { bytes, signal }: { readonly bytes: number | null; readonly signal: AbortSignal },
): AsyncGenerator<Buffer> {
  let read = 0;
  try {
    for await (const chunk of untilAborted(body, signal)) {
      read += chunk.length;
      yield chunk;
    }
  } catch (error) {
    throw unreachable(error, signal);
  }
  if (bytes !== null && read !== bytes) {
    throw new LocationError("unavailable", "the Oxen server has sent less than the file");
  }
}
