/** Reads the source as data, for tests of the architecture. */
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

export interface SourceFile {
  /** The path from the top of the repository, such as `src/http/app.ts`. */
  readonly path: string;
  readonly text: string;
}

export interface Import {
  /** A path like the one of a {@link SourceFile}, or the name of a package. */
  readonly target: string;
  readonly isOwn: boolean;
  /** It is true for an import of types alone, which is gone when the program runs. */
  readonly isTypeOnly: boolean;
}

const TOP = fileURLToPath(new URL("../..", import.meta.url));

const CODE = /\.(?:[cm]?[jt]s|tsx|css)$/;

/** Reads the code at the top of the repository, and in these folders with what is below them. */
export const readSources = (...folders: readonly string[]): SourceFile[] =>
  [
    ...readdirSync(TOP),
    ...folders.flatMap((folder) =>
      readdirSync(join(TOP, folder), { recursive: true, encoding: "utf8" })
        .sort()
        .map((name) => `${folder}/${name}`),
    ),
  ]
    .filter((path) => CODE.test(path))
    .map((path) => ({ path, text: readFileSync(join(TOP, path), "utf8") }));

/** Matches an import or export. Names, braces, commas and stars may stand between `import` and `from`. */
const DECLARATION = /^(?:import|export)\s+(type\s+)?(?:[\w\s{},*$]*?\sfrom\s+)?"([^"]+)"/gm;
const DYNAMIC = /\bimport\(\s*"([^"]+)"\s*\)/g;

export const importsOf = ({ path, text }: SourceFile): Import[] => {
  const found = [
    ...[...text.matchAll(DECLARATION)].map(([, type, name]) => ({ name, isTypeOnly: !!type })),
    ...[...text.matchAll(DYNAMIC)].map(([, name]) => ({ name, isTypeOnly: false })),
  ];
  return found.map(({ name = "", isTypeOnly }) =>
    name.startsWith(".")
      ? { target: normalize(join(dirname(path), name)), isOwn: true, isTypeOnly }
      : { target: packageOf(name), isOwn: false, isTypeOnly },
  );
};

/**
 * Returns the package of a specifier: `hono` for `hono/utils/http-status`, `@hono/node-server` for
 * `@hono/node-server/conninfo`.
 */
function packageOf(specifier: string): string {
  const [first = "", second = ""] = specifier.split("/");
  return first.startsWith("@") ? `${first}/${second}` : first;
}

export const withoutComments = (text: string): string =>
  text.replaceAll(/\/\*[\s\S]*?\*\/|^\s*\/\/.*$/gm, "");

/** Returns the comments of a file, each on one line without its markers: every block, and every line from `//` on. */
export const commentsOf = (text: string): string[] =>
  [...text.matchAll(/\/\*[\s\S]*?\*\/|(?<=^|\s)\/\/ .*$/gm)].map(([comment]) =>
    comment
      .replaceAll(/^\s*(?:\/\*+|\*(?!\/)|\/\/)|\*\/$/gm, "")
      .replaceAll(/\s+/g, " ")
      .trim(),
  );

/** Returns the names of tests: texts that come first in a call, or alone on a line. */
export const testNamesOf = (text: string): string[] =>
  [...text.matchAll(/(?:\(|^\s*)(["`])((?:(?!\1).)+)\1,/gm)].map(([, , name = ""]) => name);

export const lineCount = (text: string): number => text.trimEnd().split("\n").length;

export const startsWithAny = (text: string, beginnings: readonly string[]) =>
  beginnings.some((beginning) => text.startsWith(beginning));

export const inSource = (path: string) => path.replace(/^src\//, "");
export const isSource = ({ path }: SourceFile) => /^src\/.*\.tsx?$/.test(path);
