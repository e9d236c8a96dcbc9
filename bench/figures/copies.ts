/**
 * Measures upload and download against a plain copy of the same bytes on the same disk. All three read a file in the
 * page cache and end with an fsync. They take turns, and the best round of each counts.
 *
 * A copy has the whole machine; an upload shares it with its client and with SHA-256. So a bare receiver and a bare
 * sender take turns as well. A figure passes with half of a copy, or with nine tenths of the bare server.
 */
import { createReadStream, createWriteStream } from "node:fs";
import { rm, stat } from "node:fs/promises";
import { pipeline } from "node:stream/promises";
import { type Figure, MB } from "../figure.ts";
import { smallLineCountOf, writeInput } from "../inputs.ts";
import type { Sizes } from "../sizes.ts";
import { Stage } from "../stage.ts";

const BARE_TRANSFER = new URL("../bare-transfer.ts", import.meta.url);
const HOLD_OF_COPY = 0.5;
const HOLD_OF_BARE = 0.9;

const COPY_BYTES = 1024 * 1024;

async function copy(from: string, to: string): Promise<void> {
  await pipeline(
    createReadStream(from, { highWaterMark: COPY_BYTES }),
    createWriteStream(to, { highWaterMark: COPY_BYTES, flush: true }),
  );
}

async function secondsOf<T>(work: () => Promise<T>): Promise<{ seconds: number; result: T }> {
  const startedAtMs = performance.now();
  const result = await work();
  return { seconds: (performance.now() - startedAtMs) / 1000, result };
}

export async function measureCopies({ copyBytes, copyRounds }: Sizes): Promise<Figure[]> {
  await using stage = await Stage.open();
  const [inputPath, copyPath] = [stage.path("input.jsonl"), stage.path("copy.jsonl")];
  await writeInput(inputPath, { lineCount: smallLineCountOf(copyBytes) });
  const { size } = await stat(inputPath);
  const upstream = await stage.upstream();
  const { api } = await stage.server({ upstreamUrl: upstream.url, maxConcurrency: 1 });
  const bare = await stage.bareServer(BARE_TRANSFER, [stage.path("."), inputPath]);
  const best: Record<Work, number> = {
    copy: Number.POSITIVE_INFINITY,
    bare_upload: Number.POSITIVE_INFINITY,
    bare_download: Number.POSITIVE_INFINITY,
    upload: Number.POSITIVE_INFINITY,
    download: Number.POSITIVE_INFINITY,
  };
  const take = async <T>(work: Work, act: () => Promise<T>): Promise<T> => {
    const { seconds, result } = await secondsOf(act);
    best[work] = Math.min(best[work], seconds);
    return result;
  };
  // The first copy does not count, because it also writes back the pages that the input left in the cache.
  await copy(inputPath, copyPath);
  for (let round = 0; round < copyRounds; round++) {
    await rm(copyPath);
    await take("copy", () => copy(inputPath, copyPath));
    await rm(copyPath);
    await take("bare_upload", () => bare.upload(inputPath));
    const fileId = await take("upload", () => api.upload(inputPath));
    await take("bare_download", () => bare.download("any", copyPath));
    await rm(copyPath);
    const downloadedBytes = await take("download", () => api.download(fileId, copyPath));
    if (downloadedBytes !== size) throw new Error("the download is not as long as the upload");
    await api.deleteFile(fileId);
  }
  return figuresOf(best, size);
}

type Work = "copy" | "bare_upload" | "bare_download" | "upload" | "download";

function figuresOf(best: Readonly<Record<Work, number>>, size: number): Figure[] {
  const megabytesPerSecond = (work: Work) => size / MB / best[work];
  const known = (name: Work, title: string): Figure => {
    return { name, title, measured: megabytesPerSecond(name), unit: "MB/s" };
  };
  const held = (name: "upload" | "download", title: string): Figure => ({
    ...known(name, `${title} of ${Math.round(size / MB)} MB ÷ the lower of both floors`),
    // Half of a copy, expressed in the unit of the other floor.
    floor: Math.min(
      megabytesPerSecond(`bare_${name}`),
      (megabytesPerSecond("copy") * HOLD_OF_COPY) / HOLD_OF_BARE,
    ),
    hold: { atLeast: HOLD_OF_BARE },
  });
  return [
    known("copy", "File copy"),
    known("bare_upload", "Bare receiver: hashes, writes and syncs"),
    held("upload", "Upload"),
    known("bare_download", "Bare sender"),
    held("download", "Download"),
  ];
}
