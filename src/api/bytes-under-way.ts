/**
 * Counts the bytes of uploads for `stored_bytes` while they come. The commit of a file, or of a part, is what holds the quota
 * exactly. But the bytes are on the disk by then, and a client may take any time with the last one: a project without room could
 * fill the disk with uploads that never end. So an upload is looked at now and then, together with all others of its project
 * that are under way here, and ends as soon as there is no room for them. Its client also learns so before it has sent everything.
 */
import type { RulesOf } from "../batch/project.ts";
import { Sums } from "../batch/sums.ts";
import type { FileStore } from "../store/files.ts";
import { assertRoomForBytes } from "../store/quotas.ts";
import { withinQuotas } from "./quotas.ts";

const MIB = 1024 * 1024;
/** Most uploads are shorter, and cost the store nothing more than their commit. */
const FIRST_LOOK_BYTES = MIB;
const MAX_STEP_BYTES = 32 * MIB;

export interface BytesUnderWayDeps {
  readonly store: Pick<FileStore, "sumStored">;
  readonly rulesOf: RulesOf;
}

export class BytesUnderWay {
  readonly #deps: BytesUnderWayDeps;
  readonly #byProject = new Sums<string>();

  constructor(deps: BytesUnderWayDeps) {
    this.#deps = deps;
  }

  /** Passes the content of an upload on. Throws when the project has no room for what is under way. */
  async *counted(project: string, content: AsyncIterable<Buffer>): AsyncGenerator<Buffer, void> {
    let bytes = 0;
    let lookAtBytes = FIRST_LOOK_BYTES;
    try {
      for await (const piece of content) {
        bytes += piece.length;
        this.#byProject.add(project, piece.length);
        if (bytes >= lookAtBytes) {
          await this.#assertRoom(project);
          lookAtBytes = bytes + Math.min(bytes, MAX_STEP_BYTES);
        }
        yield piece;
      }
    } finally {
      this.#byProject.add(project, -bytes);
    }
  }

  async #assertRoom(project: string): Promise<void> {
    const { store, rulesOf } = this.#deps;
    const { quotas } = rulesOf(project);
    if (quotas.storedBytes === null) return;
    // A store that is away says nothing. The commit will.
    const has = await store.sumStored(project).catch(() => null);
    if (has === null) return;
    await withinQuotas(project, async () => {
      assertRoomForBytes(has, this.#byProject.of(project), quotas);
    });
  }
}
