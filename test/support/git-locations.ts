/** Locations in repositories of git, and what they leave, for their tests. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { type GitSurroundings, openGitLocation } from "../../src/locations/git/open.ts";
import type { Location } from "../../src/locations/location.ts";
import { TestRepository } from "./git-repository.ts";
import { configWith } from "./yaml-config.ts";

export const PATH = process.env["PATH"] ?? "";

/** Repositories, and the folder in which their locations work. All of it is removed at the end. */
export class GitLocations implements Disposable {
  readonly workFolder = mkdtempSync(join(tmpdir(), "batchd-git-work-"));
  readonly #repositories: TestRepository[] = [];

  newRepository(options?: ConstructorParameters<typeof TestRepository>[0]): TestRepository {
    const repository = new TestRepository(options);
    this.#repositories.push(repository);
    return repository;
  }

  locationAt(
    repository: string,
    more: object = {},
    surroundings: Partial<GitSurroundings> = {},
  ): Location {
    const entry = { name: "evals", kind: "git", repository, access: "read-write", ...more };
    const [config] = configWith({ locations: [entry] }).locations;
    if (config?.kind !== "git") throw new Error("not a repository");
    const { workFolder } = this;
    const usual = { clock: systemClock, workFolder, environment: { PATH } };
    return openGitLocation(config, { ...usual, ...surroundings });
  }

  [Symbol.dispose](): void {
    for (const repository of this.#repositories) repository[Symbol.dispose]();
    rmSync(this.workFolder, { recursive: true, force: true });
  }
}

/** Every object is there and whole. */
export function expectWhole(repository: TestRepository): void {
  expect(repository.text("fsck", "--full", "--strict", "--no-dangling")).toBe("");
}
