/** Parses the options of a script. `--help` and a mistake end it in words: a stack says nothing to the person at the keyboard. */
import { type ParseArgsConfig, parseArgs } from "node:util";

export function scriptOptions<const T extends ParseArgsConfig>(
  usage: string,
  config: T,
): ReturnType<typeof parseArgs<T>> {
  if (process.argv.includes("--help")) {
    process.stdout.write(`${usage}\n`);
    process.exit(0);
  }
  try {
    return parseArgs(config);
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n${usage}\n`);
    process.exit(1);
  }
}
