/** A bare repository for tests, seen with the real git and not with batchd's own code. */
import { execFileSync } from "node:child_process";
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

  /**
   * Commits files to a branch, with modes of git before a colon: `120000:link`. A new branch begins at `main`. Returns the
   * commit. It starts two programs, whatever it commits, because a start is dear in a large process.
   */
  commit(files: Readonly<Record<string, string | Buffer>>, branch = "main"): string {
    const heads = this.text("for-each-ref", "--format=%(refname:short) %(objectname)").split("\n");
    const ids = new Map(heads.map((head) => head.split(" ") as [string, string]));
    const parent = ids.get(branch) ?? ids.get("main");
    const commit = [
      `commit refs/heads/${branch}\nmark :1\ncommitter test <test@localhost> now\n`,
      ...dataOf("by a person"),
      ...(parent === undefined ? [] : [`from ${parent}\n`]),
      ...Object.entries(files).flatMap(([key, content]) => {
        const [, mode = "100644", path = key] = /^(\d{6}):(.+)$/.exec(key) ?? [];
        return [`M ${mode} inline ${path}\n`, ...dataOf(content)];
      }),
      "get-mark :1\n",
    ];
    const input = Buffer.concat(commit.map((part) => Buffer.from(part)));
    return this.#run(["fast-import", "--quiet", "--date-format=now"], input).toString().trim();
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

  #run(args: readonly string[], input?: Buffer): Buffer {
    return execFileSync("git", args, {
      cwd: this.path,
      env: ENV,
      maxBuffer: MAX_BUFFER,
      stdio: ["pipe", "pipe", "pipe"],
      ...(input !== undefined && { input }),
    });
  }
}

/** What `git fast-import` takes for a text or for the bytes of a file. */
function dataOf(content: string | Buffer): (string | Buffer)[] {
  return [`data ${Buffer.byteLength(content)}\n`, content, "\n"];
}
