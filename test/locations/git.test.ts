import { spawnSync } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buffer } from "node:stream/consumers";
import { afterAll, describe, expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { expectWhole, GitLocations, PATH } from "../support/git-locations.ts";
import { aCall, aFile, aParcel, pathOf, patternOf } from "../support/parcels.ts";
import { describeLocation } from "./suite.ts";

const git = forAllTests(new GitLocations());
const binFolders: string[] = [];
afterAll(async () => {
  for (const path of binFolders) rmSync(path, { recursive: true, force: true });
});

describeLocation("git", async () => {
  const repository = git.newRepository();
  return {
    location: git.locationAt(repository.path),
    put: async (path: string, bytes: Buffer) => void repository.commit({ [path]: bytes }),
    published: async (folder: string) => {
      const branches = repository.branches.filter((branch) => branch !== "main");
      const found = branches.map((branch) => repository.filesIn(branch, folder));
      return found.find((files) => files.size > 0) ?? new Map<string, Buffer>();
    },
    largeBytes: 2_000_004,
    outermost: "runs/",
  };
});

/** Returns a folder with a program `git` that notes its arguments and runs the real one. */
function notingGit(): { readonly path: string; readonly calls: () => string[] } {
  const path = mkdtempSync(join(tmpdir(), "batchd-git-bin-"));
  binFolders.push(path);
  const real = spawnSync("sh", ["-c", "command -v git"]).stdout.toString().trim();
  const log = join(path, "calls");
  writeFileSync(join(path, "git"), `#!/bin/sh\necho "$@" >> ${log}\nexec ${real} "$@"\n`);
  chmodSync(join(path, "git"), 0o755);
  return { path, calls: () => readFileSync(log, "utf8").trimEnd().split("\n") };
}

describe("a delivery to a git repository", () => {
  test("has time to hash a large pack once more, and gives signs of life while it is sent", async () => {
    const { path, calls } = notingGit();
    const limitsMs: number[] = [];
    const clock = {
      ...systemClock,
      after: (ms: number, fn: () => void) => {
        limitsMs.push(ms);
        return systemClock.after(ms, fn);
      },
    };
    const environment = { PATH: `${path}:${PATH}` };
    const location = git.locationAt(git.newRepository().path, {}, { clock, environment });
    const files = [aFile("output.jsonl", patternOf(4_000_000)), aFile("run.json", "{}")];
    await location.deliver(aParcel({ files }), aCall());
    // Five minutes are the usual limit, and one second more is the time of 4 MB at 4 MB/s.
    expect(new Set(limitsMs)).toEqual(new Set([300_000, 301_001]));
    expect(calls().filter((call) => call.startsWith("push"))).toEqual([
      expect.stringContaining("push --progress "),
    ]);
  });

  test("is one commit on the base, with trailers, on a branch of its own", async () => {
    const repository = git.newRepository();
    const base = repository.text("rev-parse", "main");
    const location = git.locationAt(repository.path, {
      author_name: "Evals Bot",
      author_email: "evals@example.com",
    });
    const parcel = aParcel({ title: "Nightly: größe/run #7..lock" });
    const { address } = await location.deliver(parcel, aCall());
    expect(repository.branches).toEqual([
      "batch/Nightly-größe-run-7.lock".replace(/\.lock$/, ""),
      "main",
    ]);
    const [branch = ""] = repository.branches;
    expect(address).toBe(`branch ${branch} at ${repository.text("rev-parse", branch)}`);
    expect(repository.text("rev-parse", "main")).toBe(base);
    expect(repository.text("log", "--format=%P", `main..${branch}`)).toBe(base);
    expect(repository.text("log", "-1", "--format=%an <%ae>%n%B", branch)).toBe(
      `Evals Bot <evals@example.com>\nResults of ${parcel.batchId}\n\nBatch-Id: ${parcel.batchId}\nModel: small-chat\nLines: 2 of 2`,
    );
    const folder = `runs/${parcel.batchId}`;
    expect(repository.text("diff", "--name-status", "main", branch).split("\n")).toEqual([
      `A\t${folder}/errors.jsonl`,
      `A\t${folder}/output.jsonl`,
      `A\t${folder}/run.json`,
    ]);
    expectWhole(repository);
  });

  test("reaches a repository of this machine as a pack, which no process holds in memory", async () => {
    const repository = git.newRepository();
    const files = [aFile("output.jsonl", patternOf(1_000_000)), aFile("run.json", "{}")];
    await git.locationAt(repository.path).deliver(aParcel({ files }), aCall());
    expect(repository.text("count-objects", "-v")).toContain("\npacks: 1\n");
    expectWhole(repository);
  });

  test("twice is one commit, also when the base has moved or has taken it over", async () => {
    const repository = git.newRepository();
    const location = git.locationAt(repository.path);
    const parcel = aParcel({ title: "nightly" });
    const first = await location.deliver(parcel, aCall());
    repository.commit({ "other.txt": "later" });
    expect(await location.deliver(parcel, aCall())).toEqual(first);
    expect(repository.text("rev-list", "--count", "main..batch/nightly")).toBe("1");
    repository.git("update-ref", "refs/heads/main", "batch/nightly");
    repository.git("update-ref", "-d", "refs/heads/batch/nightly");
    expect((await location.deliver(parcel, aCall())).address).toContain("branch main at");
    expect(repository.branches).toEqual(["main"]);
  });

  test("in another format is one more commit on the branch", async () => {
    const repository = git.newRepository();
    const location = git.locationAt(repository.path);
    const parcel = aParcel({ title: "nightly" });
    await location.deliver(parcel, aCall());
    const files = [aFile("output.csv", "custom_id\n"), aFile("run.json", "{}")];
    await location.deliver({ ...parcel, files }, aCall());
    expect(repository.text("rev-list", "--count", "main..batch/nightly")).toBe("2");
    expect(repository.filesIn("batch/nightly", `runs/${parcel.batchId}`).size).toBe(4);
    expectWhole(repository);
  });

  test("leaves a branch alone that another batch or a person has, and has another name", async () => {
    const repository = git.newRepository();
    const location = git.locationAt(repository.path);
    const person = repository.commit({ "mine.txt": "mine" }, "batch/nightly");
    const parcel = aParcel({ title: "nightly" });
    const first = await location.deliver(parcel, aCall());
    expect(repository.text("rev-parse", "batch/nightly")).toBe(person);
    const branch = `batch/nightly-${parcel.batchId.slice(-8)}`;
    expect(repository.branches).toEqual(["batch/nightly", branch, "main"]);
    expect(await location.deliver(parcel, aCall())).toEqual(first);
  });

  test("has another name where branches lie below its own, and none where a branch is named batch", async () => {
    const repository = git.newRepository();
    const location = git.locationAt(repository.path);
    repository.commit({}, "batch/nightly/by-hand");
    const parcel = aParcel({ title: "nightly" });
    await location.deliver(parcel, aCall());
    const branch = `batch/nightly-${parcel.batchId.slice(-8)}`;
    expect(repository.branches).toEqual([branch, "batch/nightly/by-hand", "main"]);
    repository.git("branch", "-D", branch, "batch/nightly/by-hand");
    repository.commit({}, "batch");
    const refused = location.deliver(parcel, aCall());
    await expect(refused).rejects.toMatchObject({ failure: "refused" });
    expect(repository.branches).toEqual(["batch", "main"]);
  });

  test.each(["runs", "120000:runs", "100755:team/tool.sh"])(
    "puts no folder in the place of a file or a link: %s",
    async (key) => {
      const repository = git.newRepository();
      repository.commit({ [key]: "/etc" });
      const folder = key.includes("team") ? pathOf("team/tool.sh/a") : null;
      const refused = git.locationAt(repository.path).deliver(aParcel({ folder }), aCall());
      await expect(refused).rejects.toMatchObject({
        failure: "refused",
        message: expect.stringContaining("is not a folder"),
      });
      expect(repository.branches).toEqual(["main"]);
    },
  );

  test("at the same time as another one of its name lands beside it", async () => {
    const repository = git.newRepository();
    const location = git.locationAt(repository.path);
    const parcels = Array.from({ length: 3 }, () => aParcel({ title: "the same" }));
    await Promise.all(parcels.map((parcel) => location.deliver(parcel, aCall())));
    expect(repository.branches.length).toBe(4);
    for (const { batchId } of parcels) {
      const with3 = repository.branches.filter(
        (branch) => repository.filesIn(branch, `runs/${batchId}`).size === 3,
      );
      expect(with3.length).toBe(1);
    }
    expectWhole(repository);
  });

  test("lands on the new head of a base that is moved by force while it is prepared", async () => {
    const repository = git.newRepository();
    const parcel = aParcel();
    const [output, ...others] = parcel.files;
    let isMoved = false;
    const moving = {
      ...output!,
      async *open(startByte?: number) {
        if (!isMoved) {
          const other = repository.text("commit-tree", "main^{tree}", "-m", "history rewritten");
          repository.git("update-ref", "refs/heads/main", other);
          repository.git("gc", "--quiet", "--prune=now");
        }
        isMoved = true;
        yield* output!.open(startByte);
      },
    };
    const location = git.locationAt(repository.path);
    await location.deliver({ ...parcel, files: [moving, ...others] }, aCall());
    const branch = `batch/${parcel.batchId}`;
    expect(repository.text("rev-parse", `${branch}^`)).toBe(repository.text("rev-parse", "main"));
    expect(repository.filesIn(branch, `runs/${parcel.batchId}`).size).toBe(3);
    expectWhole(repository);
  });

  test("has the bytes of the results whatever the attributes of the repository ask for", async () => {
    const repository = git.newRepository();
    const attributes =
      "* text=auto eol=crlf\n*.jsonl filter=lfs diff=lfs -text\nrun.json export-ignore ident working-tree-encoding=UTF-16\n";
    repository.commit({ ".gitattributes": attributes, "runs/.gitattributes": attributes });
    writeFileSync(join(repository.path, "info", "attributes"), attributes);
    for (const setting of ["core.autocrlf", "receive.denyNonFastForwards", "receive.fsckObjects"]) {
      repository.git("config", setting, "true");
    }
    const [output, record] = ['{"a":1}\r\n{"b":"$Id$"}\n', '{\r\n"x": "$Id$"}\n'] as const;
    const files = [aFile("output.jsonl", output), aFile("run.json", record)];
    const parcel = aParcel({ files });
    await git.locationAt(repository.path).deliver(parcel, aCall());
    const found = repository.filesIn(`batch/${parcel.batchId}`, `runs/${parcel.batchId}`);
    expect(found.get("output.jsonl")?.toString()).toBe(output);
    expect(found.get("run.json")?.toString()).toBe(record);
    expectWhole(repository);
  });

  test("cannot smuggle a trailer, or an argument, in names of clients", async () => {
    const repository = git.newRepository();
    const location = git.locationAt(repository.path);
    const parcel = aParcel({
      title: "--upload-pack=touch /tmp/x\nmain",
      message: {
        subject: "subject\n\nBatch-Id: batch_other",
        trailers: [
          ["Model", "a\nBatch-Id: batch_other"],
          ["Bad name\nX", "y"],
          ["Batch-Id", "batch_other"],
        ],
      },
    });
    await location.deliver(parcel, aCall());
    const branch = repository.branches.find((each) => each !== "main") ?? "";
    const format = "--format=%(trailers:key=Batch-Id,valueonly)";
    expect(repository.text("log", "-1", format, branch)).toBe(parcel.batchId);
    expect(repository.text("log", "-1", "--format=%(trailers:key=Model,valueonly)", branch)).toBe(
      "a Batch-Id: batch_other",
    );
    expectWhole(repository);
  });

  test("that the repository refuses says so, and changes nothing", async () => {
    const repository = git.newRepository();
    const hook = join(repository.path, "hooks", "pre-receive");
    mkdirSync(join(repository.path, "hooks"), { recursive: true });
    writeFileSync(hook, "#!/bin/sh\necho 'results are frozen' >&2\nexit 1\n");
    chmodSync(hook, 0o755);
    const refused = git.locationAt(repository.path).deliver(aParcel(), aCall());
    await expect(refused).rejects.toMatchObject({
      name: "LocationError",
      failure: "refused",
      isRetryable: false,
      message: expect.stringMatching(/results are frozen.*pre-receive hook declined/),
    });
    await expect(refused).rejects.toMatchObject({
      message: expect.not.stringContaining(repository.path),
    });
    expect(repository.branches).toEqual(["main"]);
    expectWhole(repository);
  });

  test("that a hook refuses ends at once, however long its words are and whatever they look like", async () => {
    const repository = git.newRepository();
    const hook = join(repository.path, "hooks", "pre-receive");
    const pushes = join(repository.path, "pushes");
    mkdirSync(join(repository.path, "hooks"), { recursive: true });
    const words = "Connection timed out: please fetch first";
    const much = `yes '${words}' | head -c 3000000 >&2`;
    writeFileSync(hook, `#!/bin/sh\necho push >> '${pushes}'\n${much}\nexit 1\n`);
    chmodSync(hook, 0o755);
    const refused = git.locationAt(repository.path).deliver(aParcel(), aCall());
    await expect(refused).rejects.toMatchObject({
      failure: "refused",
      message: expect.stringContaining(words),
    });
    expect(readFileSync(pushes, "utf8")).toBe("push\n");
    expect(repository.branches).toEqual(["main"]);
  });

  test("is refused for a file above max_file_bytes, before anything is sent", async () => {
    const repository = git.newRepository();
    const location = git.locationAt(repository.path, { max_file_bytes: 1_000 });
    const files = [aFile("output.jsonl", patternOf(1_001)), aFile("run.json", "{}")];
    await expect(location.deliver(aParcel({ files }), aCall())).rejects.toMatchObject({
      failure: "refused",
      message: "output.jsonl has 1001 bytes, and evals takes files of at most 1000",
    });
  });

  test("goes to a repository with SHA-256 as well", async () => {
    const repository = git.newRepository({ objectFormat: "sha256" });
    const location = git.locationAt(repository.path);
    const parcel = aParcel();
    await location.deliver(parcel, aCall());
    expect(repository.filesIn(`batch/${parcel.batchId}`, `runs/${parcel.batchId}`).size).toBe(3);
    await using file = await location.open(pathOf("README.md"), aCall());
    expect((await buffer(file.content)).toString()).toBe("base\n");
    expectWhole(repository);
  });

  test("needs its base branch and its repository", async () => {
    const repository = git.newRepository();
    const withoutBase = git.locationAt(repository.path, { base: "release" });
    await expect(withoutBase.deliver(aParcel(), aCall())).rejects.toMatchObject({
      failure: "refused",
      message: "there is no branch release in evals",
    });
    const missing = git.locationAt(`${repository.path}-missing`);
    await expect(missing.deliver(aParcel(), aCall())).rejects.toMatchObject({ failure: "refused" });
  });
});
