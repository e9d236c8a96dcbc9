/**
 * Reads the target of `batchd migrate-to`: where its database and its files are. Flags override the file. Variables such
 * as `BATCHD_DATABASE_URL` describe the source, so they do not count here.
 */
import { devNull } from "node:os";
import { join } from "node:path";
import { type ConfigResult, checkConfig } from "./config.ts";
import { STORAGE } from "./storage.ts";

export interface TargetFlags {
  /** A configuration file, such as the one that the target will run with. */
  readonly toConfig?: string;
  readonly toDataDir?: string;
  readonly databaseUrl?: string;
  /** A folder, or `s3://bucket/prefix/?region=…`. */
  readonly storage?: string;
}

/** The data folder of a target that keeps nothing in a folder. Nothing can ever be there. */
const NO_FOLDER = join(devNull, "batchd");

const S3_PLACE = /^s3:\/\/(?<bucket>[^/?#]+)(?:\/(?<prefix>[^?#]*))?(?:\?(?<query>.*))?$/;
/** A command line is visible to every user of the machine. */
const SECRETS = ["secret_access_key", "session_token"];

export function loadTarget(flags: TargetFlags): ConfigResult {
  const { toConfig, toDataDir, databaseUrl, storage } = flags;
  if (toConfig === undefined && storage === undefined) {
    return refuse(
      "name the target with --to-config FILE, or with --storage and perhaps --database-url",
    );
  }
  const place = storage === undefined ? null : placeFrom(storage);
  if (place !== null && !place.ok) return refuse(place.problem);
  const isNowhere = toConfig === undefined && toDataDir === undefined;
  const dataDir = toDataDir ?? place?.dataDir ?? (isNowhere ? NO_FOLDER : undefined);
  if (dataDir === NO_FOLDER && databaseUrl === undefined) {
    return refuse(
      "name the folder for SQLite with --to-data-dir, or a PostgreSQL with --database-url",
    );
  }
  return checkConfig(toConfig, {
    ...(dataDir !== undefined && { data_dir: dataDir }),
    ...(place !== null && { storage: place.storage }),
    ...(databaseUrl !== undefined && { database_url: databaseUrl }),
  });
}

const refuse = (problem: string): ConfigResult => ({ ok: false, problems: [problem] });

type Place =
  | { readonly ok: true; readonly storage: Record<string, unknown>; readonly dataDir?: string }
  | { readonly ok: false; readonly problem: string };

function placeFrom(text: string): Place {
  const found = S3_PLACE.exec(text)?.groups;
  if (found === undefined) {
    if (!/^[a-z0-9+.-]+:\/\//i.test(text)) {
      return { ok: true, storage: { type: "folder" }, dataDir: text };
    }
    return { ok: false, problem: `--storage: expected a folder or s3://BUCKET/PREFIX/` };
  }
  const { bucket, prefix = "", query = "" } = found;
  const parameters = [...new URLSearchParams(query)];
  const secret = parameters.find(([name]) => SECRETS.includes(name));
  if (secret !== undefined) {
    const problem = `--storage: take ${secret[0]} out of the command line: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use --to-config`;
    return { ok: false, problem };
  }
  const named = prefix === "" ? {} : { prefix: prefix.endsWith("/") ? prefix : `${prefix}/` };
  const options = parameters.map(([name, value]) => [name, parsedValue(name, value)]);
  return {
    ok: true,
    storage: { type: "s3", bucket, ...named, ...Object.fromEntries(options) },
  };
}

/** Converts the text to what the schema expects of the key. The schema reports every other text. */
function parsedValue(name: string, text: string): unknown {
  const numbered = name === "part_bytes" || name === "timeout_seconds";
  if (numbered && /^\d+$/.test(text)) return Number(text);
  const key = Object.hasOwn(STORAGE.shape, name);
  return key && (text === "true" || text === "false") ? text === "true" : text;
}
