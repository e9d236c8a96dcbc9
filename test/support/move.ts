/** Moves an installation with `batchd migrate-to`, as an operator does. */

import { runCommand } from "./command.ts";
import { BatchdProcess, type Exit } from "./process.ts";
import { S3_KEYS } from "./s3-server.ts";

/** The environment of a command for the bucket of the tests. */
const KEYS = {
  AWS_ACCESS_KEY_ID: S3_KEYS.access_key_id,
  AWS_SECRET_ACCESS_KEY: S3_KEYS.secret_access_key,
};

type Environment = Readonly<Record<string, string>>;

/** A process of its own, for a test that ends it. */
export const startMove = (args: readonly string[]): BatchdProcess =>
  new BatchdProcess(["migrate-to", ...args], KEYS);

export const move = (args: readonly string[], env: Environment = {}): Promise<Exit> =>
  runCommand(["migrate-to", ...args], { ...KEYS, ...env });

/** Fails with the output unless the move has ended well. Returns its standard output. */
export async function moveWell(args: readonly string[], env: Environment = {}): Promise<string> {
  const { code, stdout, stderr } = await move(args, env);
  if (code !== 0) throw new Error(`migrate-to ended with ${code}:\n${stdout}${stderr}`);
  return stdout;
}
