/** Shells complete the commands: the scripts are valid for their shell, and the proposals come from the commands. */
import { spawnSync } from "node:child_process";
import { describe, expect, test } from "vitest";
import { BatchdProcess } from "../support/process.ts";

const complete = async (...words: readonly string[]) =>
  (await new BatchdProcess(["complete", "--", ...words]).exited()).stdout
    .split("\n")
    .map((line) => line.split("\t")[0]);

describe("completion", () => {
  test.each(["bash", "zsh", "fish"])("the script for %s parses", async (shell) => {
    const { code, stdout } = await new BatchdProcess(["completion", shell]).exited();
    expect(code).toBe(0);
    expect(stdout).toContain("batchd");
    const checked = spawnSync(shell, ["-n"], { input: stdout, encoding: "utf8" });
    // Not every machine has zsh and fish.
    if (checked.error === undefined) expect(checked.stderr).toBe("");
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
