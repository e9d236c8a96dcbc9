/** Pastes the commands of a page into a shell. */
import { spawn } from "node:child_process";
import { chmodSync, readFileSync, writeFileSync } from "node:fs";
import { delimiter, join } from "node:path";
import { COMMAND } from "./process.ts";

export interface Pasted {
  readonly code: number | null;
  /** What came on both outputs. */
  readonly output: string;
}

interface Place {
  readonly env?: Readonly<Record<string, string>>;
  /** The folder in which the shell starts. */
  readonly folder?: string;
}

export async function paste(script: string, { env, folder }: Place = {}): Promise<Pasted> {
  const shell = spawn("bash", ["-e"], { cwd: folder, env: { ...process.env, ...env } });
  let output = "";
  for (const stream of [shell.stdout, shell.stderr]) {
    stream.setEncoding("utf8").on("data", (text: string) => {
      output += text;
    });
  }
  const ended = new Promise<number | null>((resolve) => shell.on("close", resolve));
  shell.stdin.end(script);
  return { code: await ended, output };
}

/** Puts the command `batchd` of this checkout into a folder, and returns the PATH on which it comes first. */
export function putCommand(folder: string): { PATH: string } {
  const path = join(folder, "batchd");
  writeFileSync(path, `#!/bin/sh\nexec ${COMMAND} "$@"\n`);
  chmodSync(path, 0o755);
  return { PATH: [folder, process.env["PATH"]].join(delimiter) };
}

/** Returns the blocks of a page that are marked as this language. */
export function blocksOf(page: string, language: string): string[] {
  const text = readFileSync(new URL(`../../docs/${page}`, import.meta.url), "utf8");
  const fence = new RegExp(`\`\`\`${language}\\n([\\s\\S]*?)\`\`\``, "g");
  return [...text.matchAll(fence)].map(([, block = ""]) => block);
}
