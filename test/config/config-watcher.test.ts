import {
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { ConfigWatcher } from "../../src/config/config-watcher.ts";
import { Events } from "../support/events.ts";
import { FakeClock } from "../support/fake-clock.ts";

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "batchd-watch-"));
  path = join(folder, "batchd.yaml");
  writeFileSync(path, "first");
});
afterEach(() => rmSync(folder, { recursive: true }));

/** A watch that notes what the file says at each reload. */
class Watching implements AsyncDisposable {
  readonly texts: string[] = [];
  readonly watch: ConfigWatcher;
  readonly #clock = new FakeClock();
  readonly #drain = new AbortController();
  readonly #run: Promise<void>;

  private constructor(watch: ConfigWatcher, file: string | null) {
    this.watch = watch;
    const { log } = new Events();
    const note = async () => {
      this.texts.push(file === null ? "" : readFileSync(file, "utf8"));
    };
    this.#run = watch.run(note, { clock: this.#clock, log, drain: this.#drain.signal });
  }

  static async start(file: string | null, before: () => void = () => {}): Promise<Watching> {
    const watch = await ConfigWatcher.from(file);
    before();
    const watching = new Watching(watch, file);
    await watching.asleep();
    return watching;
  }

  /** Lets it look that often, one second after the other. */
  async looks(count: number): Promise<void> {
    for (let i = 0; i < count; i++) {
      await this.asleep();
      this.#clock.advance(1_000);
    }
    await this.asleep();
  }

  async asleep(): Promise<void> {
    await this.#clock.asleep(1, this.#clock.nowMs() + 1);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#drain.abort();
    await this.#run;
  }
}

function replace(text: string): void {
  writeFileSync(`${path}.tmp`, text);
  renameSync(`${path}.tmp`, path);
}

describe("a change is told once", () => {
  test("when the file is written again", async () => {
    await using watching = await Watching.start(path);
    await watching.looks(2);
    writeFileSync(path, "second");
    await watching.looks(5);
    expect(watching.texts).toEqual(["second"]);
  });

  test("when another file is renamed into its place, again and again", async () => {
    await using watching = await Watching.start(path);
    for (const text of ["second", "third", "first"]) {
      replace(text);
      await watching.looks(3);
    }
    expect(watching.texts).toEqual(["second", "third", "first"]);
  });

  test("when Kubernetes swaps the link of the folder above", async () => {
    for (const version of ["1", "2"]) {
      mkdirSync(join(folder, version));
      writeFileSync(join(folder, version, "batchd.yaml"), `version ${version}`);
    }
    symlinkSync("1", join(folder, "..data"));
    rmSync(path);
    symlinkSync("..data/batchd.yaml", path);
    await using watching = await Watching.start(path);
    await watching.looks(2);
    symlinkSync("2", join(folder, "..data_tmp"));
    renameSync(join(folder, "..data_tmp"), join(folder, "..data"));
    await watching.looks(5);
    expect(watching.texts).toEqual(["version 2"]);
  });

  test("when an editor moves the old file away before it writes the new one", async () => {
    await using watching = await Watching.start(path);
    renameSync(path, `${path}~`);
    await watching.looks(1);
    writeFileSync(path, "second");
    await watching.looks(5);
    expect(watching.texts).toEqual(["second"]);
  });

  test("when it fell between the first read and the start of the watch", async () => {
    await using watching = await Watching.start(path, () => replace("second"));
    await watching.looks(3);
    expect(watching.texts).toEqual(["second"]);
  });
});

describe("nothing is told", () => {
  test("as long as the file is still being written", async () => {
    await using watching = await Watching.start(path);
    let text = "";
    for (const piece of ["", "sec", "ond", ", who", "le"]) {
      text += piece;
      writeFileSync(path, text);
      await watching.looks(1);
      expect(watching.texts).toEqual([]);
    }
    await watching.looks(1);
    expect(watching.texts).toEqual(["second, whole"]);
  });

  test("of other files in the folder", async () => {
    await using watching = await Watching.start(path);
    for (const name of [".batchd.yaml.swp", "batchd.yaml~", "4913"]) {
      writeFileSync(join(folder, name), "temporary");
    }
    await watching.looks(3);
    expect(watching.texts).toEqual([]);
  });
});

describe("a request to reload is obeyed at once", () => {
  test("though the file is what it was", async () => {
    await using watching = await Watching.start(path);
    await watching.looks(2);
    watching.watch.ask();
    await watching.asleep();
    await watching.looks(3);
    expect(watching.texts).toEqual(["first"]);
  });

  test("though there is no file", async () => {
    await using watching = await Watching.start(null);
    await watching.looks(2);
    watching.watch.ask();
    await watching.looks(1);
    expect(watching.texts).toEqual([""]);
  });

  test("before the watch runs, and it does so then", async () => {
    const watch = await ConfigWatcher.from(path);
    watch.ask();
    const { promise: reloaded, resolve } = Promise.withResolvers<void>();
    const drain = new AbortController();
    const { log } = new Events();
    const run = watch.run(async () => resolve(), {
      clock: new FakeClock(),
      log,
      drain: drain.signal,
    });
    await reloaded;
    drain.abort();
    await run;
  });
});
