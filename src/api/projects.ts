/**
 * Projects that operators make at run time, and the deletion of all data of a project.
 *
 * Every process has the rules of all projects in memory, and reads them again every four seconds, and at once when another
 * process says that they changed. A project of the configuration is the configuration's: nothing changes it here.
 */
import { type ProjectRules, rulesFrom } from "../batch/project.ts";
import type { Clock } from "../clock.ts";
import type { ProjectSettings } from "../contract/project.ts";
import { PublicError } from "../errors.ts";
import { loop, Nudge } from "../loop.ts";
import { inSlices } from "../resources/time-slice.ts";
import { sharedRuns } from "../shared-runs.ts";
import type { Page } from "../store/page.ts";
import type { ProjectQuery, ProjectStore, StoredProject } from "../store/projects.ts";
import type { Log } from "../telemetry/log.ts";
import { truncate } from "../text/truncate.ts";

/** Changed rules are in force everywhere within five seconds, also where no nudge arrives. */
const READ_EVERY_MS = 4_000;

export interface ProjectsDeps {
  readonly store: ProjectStore;
  readonly clock: Clock;
  readonly log: Log;
  /** Whether the configuration in force has rules for the project. */
  readonly isConfigured: (project: string) => boolean;
  /** Whether a key of the configuration in force belongs to the project. */
  readonly hasConfiguredKey: (project: string) => boolean;
}

export class Projects {
  readonly #deps: ProjectsDeps;
  readonly #nudge = new Nudge();
  readonly #end = new AbortController();
  #looping: Promise<void> = Promise.resolve();
  #rules: ReadonlyMap<string, ProjectRules> = new Map();
  /** The projects whose data is being deleted. */
  #deleted: readonly string[] = [];
  /** The elapsed time at which each project was last seen to be deleted. It stays, as requests may outlast a deletion. */
  readonly #seenDeletedAtMs = new Map<string, number>();

  constructor(deps: ProjectsDeps) {
    this.#deps = deps;
  }

  /** Resolves when the rules were read once. */
  async start(): Promise<void> {
    await this.#read();
    const { clock, log } = this.#deps;
    this.#looping = loop({
      name: "projects",
      everyMs: READ_EVERY_MS,
      nudge: this.#nudge,
      drain: this.#end.signal,
      clock,
      log,
      runOnce: () => this.#read(),
    });
  }

  /** Reads the rules again at once. */
  nudge(): void {
    this.#nudge.now();
  }

  async close(): Promise<void> {
    this.#end.abort();
    await this.#looping;
  }

  /** Returns the rules of a project that was made at run time; null for any other. */
  rulesOf(project: string): ProjectRules | null {
    return this.#rules.get(project) ?? null;
  }

  /** The projects whose data is being deleted, as of the latest reading. */
  get deleted(): readonly string[] {
    return this.#deleted;
  }

  /**
   * Throws when what a request stores now would be deleted, because the data of its project is being deleted, or has been since the
   * request began. Another project may have the name since.
   */
  assertTakesData(name: string, requestStartedAtMs: number): void {
    const seenAtMs = this.#seenDeletedAtMs.get(name) ?? Number.NEGATIVE_INFINITY;
    if (!this.#deleted.includes(name) && seenAtMs < requestStartedAtMs) return;
    throw new PublicError(
      "project_deleted",
      `The data of the project ${name} is being deleted, and new data would be, too. Try again an hour after the deletion.`,
    );
  }

  /** Makes a project, or gives one that was made at run time other rules. */
  async put(name: string, rules: ProjectSettings): Promise<StoredProject> {
    const { store, clock, log, isConfigured } = this.#deps;
    if (isConfigured(name)) throw configured(name, "Change it there");
    const createdAtMs = clock.nowMs();
    if (!(await store.putProjectUnlessDeleted({ name, rules, createdAtMs }))) {
      throw nameReserved(name);
    }
    log.info({ project: name }, "project.changed");
    await this.#read();
    const stored = await store.findProject(name);
    return stored ?? { name, rules, createdAtMs, deletedAtMs: null };
  }

  async find(name: string): Promise<StoredProject> {
    const { store, isConfigured } = this.#deps;
    const project = await store.findProject(name);
    if (project !== null) return project;
    throw isConfigured(name) ? notMadeAtRunTime(name) : noSuchProject(name, "id");
  }

  async list(query: ProjectQuery): Promise<Page<StoredProject>> {
    const page = await this.#deps.store.listProjects(query);
    if (page === null) throw noSuchProject(query.after ?? "", "after");
    return page;
  }

  /** Deletes everything that a project has, beginning with its keys. It may take a while. */
  async delete(name: string): Promise<void> {
    const { store, log, isConfigured, hasConfiguredKey } = this.#deps;
    if (isConfigured(name)) throw configured(name, "Remove it there first");
    if (hasConfiguredKey(name)) {
      throw new PublicError(
        "project_conflict",
        `A key in the configuration belongs to the project ${name}, and could store new data. Remove the key there first.`,
      );
    }
    if (!(await store.beginDeletingProjectIfPresent(name))) throw noSuchProject(name, "id");
    log.info({ project: name }, "project.deleting");
    await this.#read();
  }

  /** An older reading never replaces a newer one. */
  readonly #read = sharedRuns(() => this.#readNow());

  async #readNow(): Promise<void> {
    const rules = new Map<string, ProjectRules>();
    const deleted: string[] = [];
    for await (const group of inSlices(await this.#deps.store.findProjects())) {
      for (const project of group) {
        if (project.deletedAtMs !== null) deleted.push(project.name);
        else rules.set(project.name, rulesFrom(project.rules));
      }
    }
    this.#rules = rules;
    this.#deleted = deleted;
    const nowMs = this.#deps.clock.elapsedMs();
    for (const name of this.#deleted) this.#seenDeletedAtMs.set(name, nowMs);
  }
}

/** The error for a name whose data is being deleted. */
export const nameReserved = (name: string) =>
  new PublicError(
    "project_conflict",
    `The data of the project ${name} is being deleted. Try again an hour after the deletion, or take another name.`,
  );

const configured = (name: string, advice: string) =>
  new PublicError(
    "project_conflict",
    `The project ${name} is in the configuration of the server. ${advice}.`,
  );

const notMadeAtRunTime = (name: string) =>
  new PublicError(
    "not_found",
    `The project ${name} is in the configuration of the server. Only projects that were made at run time are here.`,
    { param: "id" },
  );

const noSuchProject = (name: string, param: "id" | "after") =>
  new PublicError("not_found", `No such project: ${truncate(name)}`, { param });
