/**
 * The part of the store for projects that were made at run time, and for the deletion of all data of a project.
 *
 * A deletion takes many commits. The row of the project is its mark until then, and for a while longer: a request that was
 * let in before may still store something, which is deleted as well.
 */
import { ProjectSettings } from "../contract/project.ts";
import type { Page } from "./page.ts";

export interface StoredProject {
  readonly name: string;
  /** The rules as an operator gave them. */
  readonly rules: ProjectSettings;
  readonly createdAtMs: number;
  /** It is null unless its data is being deleted. */
  readonly deletedAtMs: number | null;
}

export const projectFromRow = (row: StoredProject): StoredProject => {
  const { name, rules, createdAtMs, deletedAtMs } = row;
  return { name, rules, createdAtMs, deletedAtMs };
};

/** The rules of a project that was never made. */
export const DEFAULT_RULES: ProjectSettings = ProjectSettings.parse({});

export interface ProjectQuery {
  readonly limit: number;
  /** The name of the last project of the page before. */
  readonly after: string | null;
}

/** The time for which a deletion goes on. Requests that were under way when it began are over by then. */
export const DELETION_MS = 60 * 60 * 1000;

export interface ProjectStore {
  /** Makes a project, or gives one that exists other rules. Returns false while its data is being deleted. */
  putProjectUnlessDeleted(project: Omit<StoredProject, "deletedAtMs">): Promise<boolean>;
  findProject(name: string): Promise<StoredProject | null>;
  /** Lists projects, newest first. Returns null when `after` names none of now or of the last day. */
  listProjects(query: ProjectQuery): Promise<Page<StoredProject> | null>;
  /** Lists all projects. */
  findProjects(): Promise<StoredProject[]>;
  /**
   * Marks the data of a project to be deleted, also of one without a row. Its keys are gone at once. Returns false for a name that
   * has neither a row, nor keys, nor data.
   */
  beginDeletingProjectIfPresent(name: string): Promise<boolean>;
  /**
   * Deletes what the project has, of its batches a page: batches and files are marked, and the sweep removes them with their
   * bytes. Returns how many things are left as far as it has counted, the mark not among them. The mark goes when nothing is left
   * and its time is over. Nothing is deleted of a project without the mark.
   */
  purgeProject(name: string): Promise<number>;
}
