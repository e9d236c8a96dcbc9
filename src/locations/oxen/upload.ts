/**
 * Puts a file into a workspace. The server holds what comes in one request in memory, so a large file goes in chunks under
 * its XXH3-128, by which the server knows contents.
 */
import { buffer } from "node:stream/consumers";
import { createXXHash128 } from "hash-wasm";
import { FormData } from "undici";
import type { ParcelFile } from "../location.ts";
import { checkedBytes, piecesOf, untilAborted } from "../parcel-bytes.ts";
import type { OxenApi } from "./oxen-api.ts";

export interface Workspace {
  readonly api: OxenApi;
  readonly id: string;
  /** The folder of the files, as the parts of its path. */
  readonly folder: readonly string[];
  readonly signal: AbortSignal;
}

const CHUNK_BYTES = 8 * 1024 * 1024;

/** The server takes such a sign in an address as it is spelled there, `%2B`. A file in chunks has its folder in a body. */
const MISREAD = /[%+]/;

export async function upload(workspace: Workspace, file: ParcelFile): Promise<void> {
  const isReadable = !workspace.folder.some((part) => MISREAD.test(part));
  if (file.bytes <= CHUNK_BYTES && isReadable) await uploadWhole(workspace, file);
  else await uploadInChunks(workspace, file);
}

async function uploadWhole({ api, id, folder, signal }: Workspace, file: ParcelFile) {
  const body = new FormData();
  body.append("file", new Blob([await buffer(checkedBytes(file))]), file.name);
  await api.ask({ method: "POST", path: ["workspaces", id, "files", ...folder], body }, signal);
}

/** Reads the file twice, because the name of its chunks depends on all of its bytes. */
async function uploadInChunks({ api, id, folder, signal }: Workspace, file: ParcelFile) {
  const hash = await hashOf(file, signal);
  let offset = 0;
  let count = 0;
  for await (const body of piecesOf(file, CHUNK_BYTES)) {
    const query = { offset: `${offset}` };
    await api.ask({ method: "PUT", path: ["versions", hash, "chunks"], query, body }, signal);
    offset += body.length;
    count++;
  }
  const entry = { hash, file_name: file.name, dst_dir: folder.join("/"), num_chunks: count };
  const body = { files: [entry], workspace_id: id };
  await api.ask({ method: "POST", path: ["versions", hash, "complete"], body }, signal);
}

async function hashOf(file: ParcelFile, signal: AbortSignal): Promise<string> {
  const hash = await createXXHash128();
  for await (const piece of untilAborted(checkedBytes(file), signal)) hash.update(piece);
  return hash.digest("hex");
}
