/** `npm start`: a signal for npm is one for the server. */
import { type ChildProcess, spawn } from "node:child_process";
import { EventEmitter, once } from "node:events";
import { delimiter, dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import OpenAI from "openai";
import { expect, test } from "vitest";
import manifest from "../../package.json" with { type: "json" };
import { submitLines } from "../support/batches.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { atTestEnd } from "../support/leftovers.ts";
import { chatLines } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const PROJECT = fileURLToPath(new URL("../..", import.meta.url));

const dir = forAllTests(temporaryFolder("batchd-npm-start-")).path;

const PATH = [dirname(process.execPath), process.env["PATH"]].join(delimiter);

/** It has a process group of its own, of which nothing is left when the test ends. */
class NpmStart implements AsyncDisposable {
  readonly #npm: ChildProcess;
  /** It resolves when every process that could write to it is gone: npm, its shell, and the server. */
  readonly #allGone: Promise<unknown>;
  readonly #heard = new EventEmitter();
  stderr = "";

  constructor(...args: readonly string[]) {
    this.#npm = spawn("npm", ["start", "--", "--port", "0", ...args], {
      cwd: PROJECT,
      env: { ...process.env, PATH },
      stdio: ["ignore", "pipe", "pipe"],
      detached: true,
    });
    atTestEnd(() => this[Symbol.asyncDispose]());
    this.#npm.stderr?.on("data", (text: Buffer) => {
      this.stderr += text.toString();
      this.#heard.emit("more");
    });
    this.#allGone = once(this.#npm, "close");
  }

  async listening(): Promise<string> {
    const lines = createInterface({ input: this.#npm.stdout as NodeJS.ReadableStream });
    for await (const line of lines) {
      const url = /^batchd listening on (\S+)$/.exec(line)?.[1];
      if (url !== undefined) return url;
    }
    throw new Error(`npm start ended:\n${this.stderr}`);
  }

  async logged(event: string): Promise<void> {
    while (!this.stderr.includes(`"event":"${event}"`)) await once(this.#heard, "more");
  }

  /** Signals npm alone, as a supervisor does it. Resolves when nothing is left. */
  async signal(signal: NodeJS.Signals): Promise<void> {
    this.#npm.stdout?.resume();
    this.#npm.kill(signal);
    await this.#allGone;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    try {
      process.kill(-(this.#npm.pid as number), "SIGKILL");
    } catch {
      // All of it is gone.
    }
  }
}

test.each(["SIGTERM", "SIGINT"] as const)(
  "%s for npm lets the server finish what is in flight, and leaves no process behind",
  async (signal) => {
    await using upstream = await startUpstream();
    upstream.hold();
    await using started = new NpmStart("--data-dir", join(dir, signal), "--upstream", upstream.url);
    const url = await started.listening();
    const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
    await submitLines(openai, chatLines(1));
    await upstream.reached(1);

    const gone = started.signal(signal);
    await started.logged("server.stopping");
    upstream.release();
    await gone;

    expect(started.stderr).toContain(`"signal":"${signal}"`);
    expect(started.stderr).toContain('"event":"server.stopped"');
    await expect(fetch(`${url}/health`)).rejects.toThrow();
  },
);

test("the scripts of the package hold nothing that only one kind of shell knows", () => {
  for (const [name, script] of Object.entries(manifest.scripts)) {
    expect(script, name).not.toMatch(
      /['$`;|<>*~]|(?<!&)&(?!&)|^\w+=|\b(?:rm|cp|mv|mkdir|cat|sh)\b/,
    );
    // cmd.exe finds exec.cmd in the folder of the package.
    if (/\bexec\b/.test(script)) expect(["start", "dev"]).toContain(name);
  }
});
