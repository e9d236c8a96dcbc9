/**
 * The files of the page: our own scripts and styles, and those of npm packages. A hash of all files is part of their
 * address, so a browser keeps them for ever and still never mixes two versions.
 */
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import type { Hono } from "hono";
import { PublicError } from "../errors.ts";
import type { AppEnv } from "../http/context.ts";

const TYPES: Readonly<Record<string, string>> = {
  css: "text/css; charset=utf-8",
  js: "text/javascript; charset=utf-8",
  svg: "image/svg+xml",
};

/** They are in the order in which a page loads them: a later one has the last word. */
export const STYLES = ["base.css", "parts.css", "pages.css"];

const OWN = [
  ...STYLES,
  "icon.svg",
  "app.js",
  "actions.js",
  "focus.js",
  "live.js",
  "in-use.js",
  "session.js",
  "signed-out.js",
  "times.js",
  "visible.js",
  "files.js",
  "upload.js",
  "new-batch.js",
  "input-check.js",
  "csv.js",
  "template.js",
  "keys.js",
  "charts.js",
  "lines.js",
];

/** The files of packages, by the name that the page has for them. */
const OF_PACKAGES: Readonly<Record<string, () => string>> = {
  "idiomorph.js": () => import.meta.resolve("idiomorph/dist/idiomorph.min.js"),
  "uplot.js": () => import.meta.resolve("uplot/dist/uPlot.iife.min.js"),
  "uplot.css": () => import.meta.resolve("uplot/dist/uPlot.min.css"),
  "papaparse.js": () => import.meta.resolve("papaparse/papaparse.min.js"),
};

/** Whether a script is one of a package, which defines a name for our modules. */
export const isLibrary = (name: string): boolean => name in OF_PACKAGES;

interface Asset {
  readonly type: string;
  readonly bytes: Bytes;
  readonly br: Bytes;
  readonly gzip: Bytes;
}

/** All connections send the same bytes, as any number of clients may read nothing. */
type Bytes = Buffer<ArrayBuffer>;

interface Assets {
  readonly version: string;
  readonly byName: ReadonlyMap<string, Asset>;
}

let loaded: Assets | null = null;

/** Reads the files at the first request, because a server without readers needs none. */
function assets(): Assets {
  loaded ??= load();
  return loaded;
}

function load(): Assets {
  const hash = createHash("sha256");
  const byName = new Map<string, Asset>();
  const addresses = [
    ...OWN.map((name) => [name, new URL(`./assets/${name}`, import.meta.url).href] as const),
    ...Object.entries(OF_PACKAGES).map(([name, locate]) => [name, locate()] as const),
  ];
  for (const [name, address] of addresses) {
    const bytes = readFileSync(new URL(address));
    hash.update(name).update("\0").update(bytes);
    const type = TYPES[name.slice(name.lastIndexOf(".") + 1)] ?? "application/octet-stream";
    byName.set(name, { type, bytes, ...compressed(bytes) });
  }
  return { version: hash.digest("hex").slice(0, 16), byName };
}

const BROTLI = { params: { [constants.BROTLI_PARAM_QUALITY]: 6 } };
const compressed = (bytes: Bytes) => ({
  br: brotliCompressSync(bytes, BROTLI),
  gzip: gzipSync(bytes),
});

/** Returns what all files of the page have in common, and a server with other files has not. */
export const assetsVersion = (): string => assets().version;

/** Returns the path of a file below the root of the page. */
export const assetPath = (name: string): string => `web/assets/${assets().version}/${name}`;

const FOR_EVER = "public, max-age=31536000, immutable";

export function mountAssets(app: Hono<AppEnv>): void {
  app.get("/web/assets/:version/:name", (c) => {
    const { version, byName } = assets();
    const { name, version: asked } = c.req.param();
    const asset = byName.get(name);
    if (asset === undefined) throw new PublicError("not_found", "There is no such asset.");
    const accepted = c.req.header("accept-encoding") ?? "";
    const encoding = (["br", "gzip"] as const).find((each) => accepted.includes(each));
    return c.body(asset[encoding ?? "bytes"], 200, {
      "content-type": asset.type,
      // A replica of another version must not fill the cache under an address of this one.
      "cache-control": asked === version ? FOR_EVER : "no-store",
      ...(encoding !== undefined && { "content-encoding": encoding }),
      vary: "accept-encoding",
      "x-content-type-options": "nosniff",
    });
  });
}
