/** The commands on the files that a server has. */

import { printable } from "../printable.ts";
import { note, say, sayJson, sayTable } from "../terminal/lines.ts";
import { bytes, date } from "../words.ts";
import { confirm } from "./batches.ts";
import { pageSizeFor, sayOlder } from "./cut-list.ts";
import { contentOf } from "./download.ts";
import { EXIT } from "./exit-codes.ts";
import { openInput } from "./input.ts";
import { assertWritable, writeOutput } from "./output.ts";
import type { JsonFlag, Session } from "./session.ts";
import { type ShownFile, uploadFile } from "./upload.ts";

export interface FileListFlags extends JsonFlag {
  readonly limit: number;
  readonly purpose?: string;
}

const PAGE_MAX = 1_000;

export async function listFiles(
  flags: FileListFlags,
  { server, signal }: Session,
): Promise<number> {
  const { purpose, limit, json } = flags;
  const query = { limit: pageSizeFor(limit, PAGE_MAX), ...(purpose !== undefined && { purpose }) };
  const rows: string[][] = [];
  let seen = 0;
  for await (const file of server.list<ShownFile>("/files", query)) {
    signal.throwIfAborted();
    if (++seen > limit) break;
    if (json) sayJson(file);
    else rows.push(rowOf(file));
  }
  if (json) return EXIT.done;
  if (rows.length === 0) note("No files. batchd files upload FILE brings one.");
  else sayTable(["ID", "SIZE", "PURPOSE", "CREATED", "EXPIRES", "NAME"], rows);
  if (seen > limit) sayOlder(limit);
  return EXIT.done;
}

const sizeOf = (file: ShownFile): string =>
  typeof file.bytes === "number" ? bytes(file.bytes) : "-";

const rowOf = (file: ShownFile): string[] => [
  file.id,
  sizeOf(file),
  file.purpose ?? "-",
  date(file.created_at),
  date(file.expires_at),
  file.filename ?? "-",
];

export async function showFile(id: string, { json }: JsonFlag, { server }: Session) {
  const file = (await server.openai.files.retrieve(id)) as ShownFile;
  if (json) sayJson(file);
  else sayFile(file);
  return EXIT.done;
}

function sayFile(file: ShownFile): void {
  const rows = { id: file.id, name: file.filename ?? "-", size: sizeOf(file) };
  const more = { purpose: file.purpose ?? "-", created: date(file.created_at) };
  for (const [label, text] of Object.entries({
    ...rows,
    ...more,
    expires: date(file.expires_at),
  })) {
    say(`${label.padEnd(9)}${printable(text)}`);
  }
}

export interface UploadFlags extends JsonFlag {
  readonly purpose: string;
}

export async function upload(path: string, flags: UploadFlags, { server, signal }: Session) {
  await using input = await openInput(path, signal);
  const file = await uploadFile(server, input, { purpose: flags.purpose, signal });
  if (flags.json) sayJson(file);
  else say(printable(file.id));
  return EXIT.done;
}

export async function download(
  id: string,
  { output }: { readonly output?: string },
  { server, ...session }: Session,
): Promise<number> {
  await assertWritable(output);
  await writeOutput(contentOf(server, id, session), output);
  return EXIT.done;
}

export async function deleteFile(
  id: string,
  { yes, json }: JsonFlag & { readonly yes?: boolean },
  { server, signal }: Session,
): Promise<number> {
  if (!yes) await confirm(`Delete the file ${id}?`, signal);
  const deleted = await server.delete(`/files/${encodeURIComponent(id)}`, { id, object: "file" });
  if (json) sayJson(deleted);
  else say(`deleted ${printable(id)}`);
  return EXIT.done;
}
