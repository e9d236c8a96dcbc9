import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { buffer } from "node:stream/consumers";
import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { GitLocations, PATH } from "../support/git-locations.ts";
import { listening } from "../support/listening.ts";
import { aCall, aFile, aParcel, pathOf } from "../support/parcels.ts";

const git = forAllTests(new GitLocations());
const { workFolder } = git;

describe("a hostile base branch", () => {
  test("runs no filter and no hook, and gives out nothing but regular files", async () => {
    const repository = git.newRepository();
    const proof = join(workFolder, "proof");
    const submodule = '[submodule "x"]\n\tpath = x\n\turl = ext::sh -c touch% proof\n';
    repository.commit({
      ".gitattributes": "* filter=evil diff=evil merge=evil text working-tree-encoding=UTF-16\n",
      ".gitmodules": submodule,
      "in.jsonl": "line\r\n",
      "120000:link": "/etc/passwd",
    });
    repository.git("config", "filter.evil.clean", `touch ${proof}`);
    repository.git("config", "filter.evil.smudge", `touch ${proof}`);
    repository.git("config", "filter.evil.required", "true");
    repository.git("config", "core.fsmonitor", `touch ${proof}`);
    repository.git("config", "uploadpack.packObjectsHook", `touch ${proof}`);
    repository.git("config", "core.sshCommand", `touch ${proof}`);
    const location = git.locationAt(repository.path);
    const parcel = aParcel({ files: [aFile("output.jsonl", "a\r\n"), aFile("run.json", "{}")] });
    await location.deliver(parcel, aCall());
    await using file = await location.open(pathOf("in.jsonl"), aCall());
    expect(file.revision).toBe(repository.text("rev-parse", "main"));
    expect((await buffer(file.content)).toString()).toBe("line\r\n");
    const published = repository.filesIn(`batch/${parcel.batchId}`, `runs/${parcel.batchId}`);
    expect(published.get("output.jsonl")?.toString()).toBe("a\r\n");
    const refused = location.open(pathOf("link"), aCall());
    await expect(refused).rejects.toMatchObject({ failure: "refused" });
    expect(existsSync(proof)).toBe(false);
  });
});

describe("git", () => {
  test("leaves nothing in the work folder, and the next process removes what a killed one left", async () => {
    const repository = git.newRepository();
    const location = git.locationAt(repository.path);
    await location.deliver(aParcel(), aCall());
    await (await location.open(pathOf("README.md"), aCall()))[Symbol.asyncDispose]();
    await expect(location.open(pathOf("none"), aCall())).rejects.toThrow();
    expect(readdirSync(workFolder)).toEqual([]);
    const { pid: deadPid } = spawnSync("true");
    const own = await import("node:os").then(({ hostname }) => hostname());
    const begin = `batchd-git-${own.replaceAll(/[^A-Za-z0-9.]/g, "_")}-`;
    mkdirSync(join(workFolder, `${begin}${deadPid}-abcdef`, "objects"), { recursive: true });
    mkdirSync(join(workFolder, `${begin}1-abcdef`));
    mkdirSync(join(workFolder, "another"));
    await git.locationAt(repository.path).deliver(aParcel(), aCall());
    expect(readdirSync(workFolder).sort()).toEqual(["another", `${begin}1-abcdef`]);
    rmSync(join(workFolder, "another"), { recursive: true });
    rmSync(join(workFolder, `${begin}1-abcdef`), { recursive: true });
  });

  test("that is not answered ends with the time limit, and names no address", async () => {
    const port = await listening(createServer(() => {}));
    const location = git.locationAt(`http://127.0.0.1:${port}/evals.git`, {
      timeout_seconds: "200ms",
    });
    const failed = location.deliver(aParcel(), aCall());
    await expect(failed).rejects.toMatchObject({ failure: "unavailable" });
    await expect(failed).rejects.toMatchObject({
      message: expect.not.stringContaining("127.0.0.1"),
    });
    expect(readdirSync(workFolder)).toEqual([]);
  });

  test.each([
    ["does not answer", "http://127.0.0.1:1"],
    ["is not known", "http://proxy.invalid:3128"],
  ])("behind a proxy that %s names no address", async (_, proxy) => {
    const environment = { PATH, http_proxy: proxy };
    const location = git.locationAt("http://git.invalid/evals.git", {}, { environment });
    const failed = location.open(pathOf("in.jsonl"), aCall());
    await expect(failed).rejects.toMatchObject({
      failure: "unavailable",
      message: expect.stringContaining("the proxy"),
    });
    await expect(failed).rejects.toMatchObject({
      message: expect.not.stringMatching(/invalid|127\.0\.0\.1/),
    });
  });

  test.each(["http://Git.invalid:8443/evals.git", "ssh://git@Git.invalid:2222/evals.git"])(
    "at an address with a port, %s, that is not known names no host",
    async (repository) => {
      const failed = git.locationAt(repository).open(pathOf("in.jsonl"), aCall());
      await expect(failed).rejects.toMatchObject({
        failure: "unavailable",
        message: expect.stringContaining("git says"),
      });
      await expect(failed).rejects.toMatchObject({
        message: expect.not.stringMatching(/invalid/i),
      });
    },
  );

  test("sends the password to its host alone, in no argument, and follows no redirect with it", async () => {
    const seen: string[] = [];
    const { createServer: createHttp } = await import("node:http");
    const thief = createHttp((asked, answer) => {
      seen.push(`thief ${asked.headers.authorization}`);
      answer.writeHead(404).end();
    });
    const thiefPort = await listening(thief);
    const server = createHttp((asked, answer) => {
      seen.push(`host ${asked.headers.authorization}`);
      answer.writeHead(302, { location: `http://127.0.0.1:${thiefPort}${asked.url}` }).end();
    });
    const port = await listening(server);
    const location = git.locationAt(`http://127.0.0.1:${port}/evals.git`, {
      username: "batchd",
      password: "git-token-4711",
    });
    const failed = location.deliver(aParcel(), aCall());
    await expect(failed).rejects.toMatchObject({ name: "LocationError" });
    await expect(failed).rejects.toMatchObject({
      message: expect.not.stringContaining("git-token-4711"),
    });
    const basic = Buffer.from("batchd:git-token-4711").toString("base64");
    expect(new Set(seen)).toEqual(new Set([`host Basic ${basic}`]));
  });

  test.skipIf(process.platform !== "linux")(
    "does not fill the memory with a list of branches without end",
    async () => {
      const ref = `004e${"a".repeat(40)} refs/heads/batch/sixteen-letters\n`;
      const piece = Buffer.from(ref.repeat(20_000));
      const { createServer: createHttp } = await import("node:http");
      let sentBytes = 0;
      const endless = createHttp((_, answer) => {
        const type = "application/x-git-upload-pack-advertisement";
        answer
          .writeHead(200, { "content-type": type })
          .write("001e# service=git-upload-pack\n0000");
        const send = () => {
          for (let hasRoom = true; hasRoom && !answer.destroyed; sentBytes += piece.length) {
            hasRoom = answer.write(piece);
          }
        };
        answer.on("drain", send);
        send();
      });
      const location = git.locationAt(`http://127.0.0.1:${await listening(endless)}/evals.git`);
      const failed = location.deliver(aParcel(), aCall());
      await expect(failed).rejects.toMatchObject({ name: "LocationError", failure: "unavailable" });
      expect(sentBytes).toBeLessThan(2 * 1024 ** 3);
    },
  );

  test("that is not installed is a failure that says so", async () => {
    const environment = { PATH: "/nonexistent" };
    const location = git.locationAt("/srv/evals.git", { access: "write" }, { environment });
    const failed = location.deliver(aParcel(), aCall());
    await expect(failed).rejects.toMatchObject({
      name: "LocationError",
      message: expect.stringContaining("git could not be started"),
    });
  });
});
