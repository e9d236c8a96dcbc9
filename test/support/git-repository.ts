/** A bare repository for tests, seen with the real git and not with batchd's own code. */
import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const ENV = {
  PATH: process.env["PATH"] ?? "",
  GIT_CONFIG_GLOBAL: "/dev/null",
  GIT_CONFIG_NOSYSTEM: "1",
  LC_ALL: "C",
  GIT_AUTHOR_NAME: "test",
  GIT_AUTHOR_EMAIL: "test@localhost",
  GIT_COMMITTER_NAME: "test",
  GIT_COMMITTER_EMAIL: "test@localhost",
};
const MAX_BUFFER = 256 * 1024 * 1024;

export class TestRepository implements Disposable {
  readonly path: string;
  readonly #root: string;

  constructor(options: { readonly objectFormat?: "sha1" | "sha256" } = {}) {
    this.#root = mkdtempSync(join(tmpdir(), "batchd-git-test-"));
    this.path = join(this.#root, "evals.git");
    const format = `--object-format=${options.objectFormat ?? "sha1"}`;
    execFileSync("git", ["init", "-q", "--bare", "-b", "main", format, this.path], { env: ENV });
    this.commit({ "README.md": "base\n" });
  }

  git(...args: readonly string[]): Buffer {
    return this.#run(args);
  }

  /** The output without the line break at its end. */
  text(...args: readonly string[]): string {
    return this.#run(args).toString().trimEnd();
  }

  /** Commits files to a branch, with modes of git before a colon: `120000:link`. Returns the commit. */
  commit(files: Readonly<Record<string, string | Buffer>>, branch = "main", from = "main"): string {
    const index = { GIT_INDEX_FILE: join(this.#root, "index") };
    rmSync(index.GIT_INDEX_FILE, { force: true });
    const has = (name: string) =>
      spawnSync("git", ["rev-parse", "-q", "--verify", name], { cwd: this.path, env: ENV })
        .status === 0;
    const parent = [branch, from].find(has);
    if (parent !== undefined) this.#run(["read-tree", parent], index);
    for (const [key, content] of Object.entries(files)) {
      const [, mode = "100644", path = key] = /^(\d{6}):(.+)$/.exec(key) ?? [];
      const id = this.#run(["hash-object", "-w", "--stdin"], {}, content).toString().trim();
      this.#run(["update-index", "--add", "--cacheinfo", `${mode},${id},${path}`], index);
    }
    const tree = this.#run(["write-tree"], index).toString().trim();
    const parents = parent === undefined ? [] : ["-p", parent];
    const made = this.#run(["commit-tree", tree, ...parents, "-m", "by a person"])
      .toString()
      .trim();
    this.#run(["update-ref", `refs/heads/${branch}`, made]);
    return made;
  }

  get branches(): string[] {
    return this.text("for-each-ref", "--format=%(refname:short)", "refs/heads/").split("\n").sort();
  }

  /** The files of a commit in a folder, by their paths in it. */
  filesIn(commit: string, folder: string): Map<string, Buffer> {
    const listed = this.#run(["ls-tree", "-r", "-z", "--name-only", commit, "--", `${folder}/`]);
    const paths = listed
      .toString()
      .split("\0")
      .filter((path) => path !== "");
    return new Map(
      paths.map((path) => [
        path.slice(folder.length + 1),
        this.#run(["show", `${commit}:${path}`]),
      ]),
    );
  }

  [Symbol.dispose](): void {
    rmSync(this.#root, { recursive: true, force: true });
  }

  #run(
    args: readonly string[],
    more: Record<string, string> = {},
    input?: string | Buffer,
  ): Buffer {
    return execFileSync("git", args, {
      cwd: this.path,
      env: { ...ENV, ...more },
      maxBuffer: MAX_BUFFER,
      stdio: ["pipe", "pipe", "pipe"],
      ...(input !== undefined && { input }),
    });
  }
}
