/** Opens a git location from its configuration. */
import { resolve } from "node:path";
import type { Clock } from "../../clock.ts";
import type { LocationConfig } from "../../config/locations.ts";
import type { Location } from "../location.ts";
import { GitLocation } from "./git.ts";
import { Git } from "./git-process.ts";
import type { RepositoryAddress } from "./repository.ts";
import { WorkFolders } from "./work-folders.ts";

type GitConfig = Extract<LocationConfig, { kind: "git" }>;

export interface GitSurroundings {
  readonly clock: Pick<Clock, "after" | "elapsedMs" | "nowMs">;
  /** The folder in which repositories are while they are in use. It needs room for the files of a delivery. */
  readonly workFolder: string;
  /** The variables of the environment that git and ssh get. */
  readonly environment: Readonly<Record<string, string>>;
}

const CONNECT_SECONDS = 15;

export function openGitLocation(config: GitConfig, surroundings: GitSurroundings): Location {
  const { name, base, author_name, author_email, max_file_bytes: maxFileBytes = null } = config;
  const { clock, workFolder, environment } = surroundings;
  const git = new Git({
    clock,
    environment,
    silenceMs: config.timeout_seconds * 1_000,
    sshCommand: sshCommandWith(config.ssh_key_file),
  });
  const author = { name: author_name, email: author_email };
  return new GitLocation(
    { name, remote: remoteOf(config), base, author, maxFileBytes },
    { git, clock, folders: new WorkFolders(workFolder) },
  );
}

function remoteOf({ repository, username, password }: GitConfig): RepositoryAddress {
  const isLocal = !/^[a-z]+:\/\/|^[^/]+:/i.test(repository);
  const pair = Buffer.from(`${username}:${password}`).toString("base64");
  return {
    address: isLocal ? resolve(repository) : repository,
    isLocal,
    authorization: password === undefined ? null : `Basic ${pair}`,
  };
}

/** Git has a shell run this command, and every word in it is the operator's. ssh never asks, and reads no settings of the user. */
function sshCommandWith(keyFile: string | undefined): string {
  const options = ["BatchMode=yes", `ConnectTimeout=${CONNECT_SECONDS}`, "ServerAliveInterval=15"];
  const key = keyFile === undefined ? [] : ["-i", resolve(keyFile), "-o", "IdentitiesOnly=yes"];
  const words = ["ssh", "-F", "none", ...options.flatMap((each) => ["-o", each]), ...key];
  return words.map((word) => `'${word.replaceAll("'", "'\\''")}'`).join(" ");
}
