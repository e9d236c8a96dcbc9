/**
 * Upload and download against a plain copy of the same bytes on the same disk. All three read a file that is in the
 * page cache and end with an fsync; they take turns, and the best of each counts.
 *
 * On two cores an upload misses its hold: client, server, SHA-256 and the write to the page cache share what a copy
 * has for itself. There a bare receiver that only hashes, writes and syncs comes to 0.3 to 0.45 as well.
 */
import { createReadStream, createWriteStream } from "node:fs";
import { rm, stat } from "node:fs/promises";
import { pipeline } from "node:stream/promises";
import { type Figure, MB } from "../figure.ts";
import { smallLineCountOf, writeInput } from "../inputs.ts";
import type { Sizes } from "../sizes.ts";
import { Stage } from "../stage.ts";

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
  const best = { copy: Infinity, upload: Infinity, download: Infinity };
  // The first copy is not counted: it writes back what making the input left in the page cache.
  await copy(inputPath, copyPath);
  for (let round = 0; round < copyRounds; round++) {
    await rm(copyPath);
    const copied = await secondsOf(() => copy(inputPath, copyPath));
    await rm(copyPath);
    const uploaded = await secondsOf(() => api.upload(inputPath));
    const downloaded = await secondsOf(() => api.download(uploaded.result, copyPath));
    if (downloaded.result !== size) throw new Error("the download is not as long as the upload");
    best.copy = Math.min(best.copy, copied.seconds);
    best.upload = Math.min(best.upload, uploaded.seconds);
    best.download = Math.min(best.download, downloaded.seconds);
    await api.deleteFile(uploaded.result);
  }
  const megabytesPerSecond = (seconds: number) => size / MB / seconds;
  const figure = (name: "upload" | "download", title: string): Figure => ({
    name,
    title: `${title} of ${Math.round(size / MB)} MB ÷ file copy`,
    measured: megabytesPerSecond(best[name]),
    unit: "MB/s",
    floor: megabytesPerSecond(best.copy),
    hold: { atLeast: 0.5 },
  });
  return [figure("upload", "Upload"), figure("download", "Download")];
}
