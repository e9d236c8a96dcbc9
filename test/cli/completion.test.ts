/** Shells complete the commands: the scripts are valid for their shell, and the proposals come from the commands. */
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { BatchdProcess, MAIN } from "../support/process.ts";
import { hasProgram } from "../support/programs.ts";
import { temporaryFolder } from "../support/store-builders.ts";

const complete = async (...words: readonly string[]) =>
  (await new BatchdProcess(["complete", "--", ...words]).exited()).stdout
    .split("\n")
    .map((line) => line.split("\t")[0]);

describe("completion", () => {
  const needing = (shell: string) => test.skipIf(!hasProgram(shell, "the tests of completions"));

  for (const shell of ["bash", "zsh", "fish"]) {
    needing(shell)(`the script for ${shell} parses`, async () => {
      const { code, stdout } = await new BatchdProcess(["completion", shell]).exited();
      expect(code).toBe(0);
      expect(stdout).toContain("batchd");
      using folder = temporaryFolder("batchd-completion-");
      const path = join(folder.path, "script");
      writeFileSync(path, stdout);
      const checked = spawnSync(shell, ["-n", path], { encoding: "utf8" });
      expect(checked).toMatchObject({ status: 0, stderr: "" });
    });
  }

  test("takes the shells that it names, and no other", async () => {
    const { code, stderr } = await new BatchdProcess(["completion", "powershell"]).exited();
    expect(code).toBe(1);
    expect(stderr).toContain("Allowed choices are bash, zsh, fish.");
    expect((await complete("completion", "")).slice(0, 3)).toEqual(["bash", "zsh", "fish"]);
    expect(await complete("completion", "")).not.toContain("powershell");
  });

  test("bash runs nothing of a command line or a name at Tab, and quotes what it inserts", async () => {
    using folder = temporaryFolder("batchd-completion-");
    writeFileSync(join(folder.path, "precious.jsonl"), "precious");
    writeFileSync(join(folder.path, "$(touch owned).jsonl"), "");
    mkdirSync(join(folder.path, "sub dir"));
    const { stdout: script } = await new BatchdProcess(["completion", "bash"]).exited();
    const tab = (...words: readonly string[]) => {
      const quoted = words.map((word) => `'${word}'`).join(" ");
      const call = `COMP_WORDS=(batchd ${quoted}); COMP_CWORD=${words.length}; _batchd_complete`;
      return `${call}; printf '%s|' "\${COMPREPLY[@]}"; echo`;
    };
    const source = [
      `batchd() { '${process.execPath}' '${MAIN}' "$@"; }`,
      // A shell that reads its settings twice has it twice.
      script,
      script,
      tab("submit", ""),
      tab("submit", "$(touch other)"),
      tab("results", "batch_1", ">", "precious.jsonl", "--form"),
      tab("submit", "--format", "=", "c"),
    ].join("\n");
    const options = { cwd: folder.path, encoding: "utf8" } as const;
    const { stdout, stderr } = spawnSync("bash", ["--norc", "-c", source], options);
    expect(stderr.replaceAll(/^.*compopt: not currently executing.*\n/gm, "")).toBe("");
    expect(stdout.split("\n").slice(0, -1)).toEqual([
      expect.stringMatching(/^\\\$\\\(touch\\ owned\\\).jsonl\|precious.jsonl\|sub\\ dir\/\|$/),
      "|",
      "--format|",
      "csv|",
    ]);
    expect(readdirSync(folder.path).sort()).toEqual(
      ["$(touch owned).jsonl", "precious.jsonl", "sub dir"].sort(),
    );
    expect(readFileSync(join(folder.path, "precious.jsonl"), "utf8")).toBe("precious");
  });

  needing("zsh")("zsh completes the value of an option after its equals sign", async () => {
    using folder = temporaryFolder("batchd-completion-");
    const { stdout: script } = await new BatchdProcess(["completion", "zsh"]).exited();
    writeFileSync(join(folder.path, "script"), script);
    const command = `#!/bin/sh\nexec '${process.execPath}' '${MAIN}' "$@"\n`;
    writeFileSync(join(folder.path, "batchd"), command, { mode: 0o755 });
    // Only a shell in a terminal completes.
    const source = [
      "zmodload zsh/zpty",
      "zpty shell zsh -f -i",
      "zpty -w shell \"autoload -Uz compinit; compinit -D -u; . ./script; PATH=$PWD:\\$PATH; print rea''dy\"",
      "zpty -r -m shell seen '*ready*'",
      "zpty -w -n shell $'batchd submit --format=c\\t'",
      "zpty -r -m shell seen '*=csv*' && print completed",
    ].join("\n");
    const options = { cwd: folder.path, env: { ...process.env, TERM: "vt100" }, timeout: 60_000 };
    expect(spawnSync("zsh", ["-fc", source], options).stdout.toString()).toBe("completed\n");
  });

  test("proposes commands, options, their values, and files", async () => {
    const proposed = await Promise.all([
      complete("su"),
      complete("files", ""),
      complete("submit", "--en"),
      complete("submit", "--format", ""),
      complete("submit", "package.js"),
    ]);
    expect(proposed[0]).toContain("submit");
    expect(proposed[1]).toEqual(expect.arrayContaining(["list", "upload", "download"]));
    expect(proposed[2]).toContain("--endpoint");
    expect(proposed[3]).toEqual(expect.arrayContaining(["jsonl", "csv"]));
    expect(proposed[4]).toContain("package.json");
  });
});
