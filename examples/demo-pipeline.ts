/** The last part of the demo: three batches that follow one another, by `batchd pipeline run`. */
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { dim, heading, print, row } from "./demo-screen.ts";

const MAIN = fileURLToPath(import.meta.resolve("../src/main.ts"));
const pathOf = (name: string) => fileURLToPath(new URL(`pipelines/${name}`, import.meta.url));
const SHOWN_ANSWERS = 3;

export async function showPipeline(url: string, folder: string): Promise<void> {
  const output = join(folder, "rewritten.jsonl");
  heading("A pipeline: translate, judge, rewrite");
  print();
  const files = [pathOf("translate.yaml"), pathOf("phrases.jsonl")];
  const command = spawn(
    process.execPath,
    [MAIN, "pipeline", "run", ...files, "--url", url, "-o", output],
    { stdio: ["ignore", "ignore", "pipe"] },
  );
  let said = "";
  command.stderr.setEncoding("utf8").on("data", (text: string) => {
    said += text;
  });
  const code = await new Promise<number | null>((resolve) => command.on("close", resolve));
  if (code !== 0) throw new Error(`The pipeline ended with exit code ${code}:\n${said}`);
  const rows = readFileSync(output, "utf8").trimEnd().split("\n");
  for (const line of rows.slice(0, SHOWN_ANSWERS)) {
    const { custom_id, response } = JSON.parse(line);
    row(custom_id, response.body.choices[0].message.content);
  }
  row("", dim(`${rows.length} rows in their order, each through three batches`));
  print();
}
