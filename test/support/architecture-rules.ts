/** The rules of the source tree. Each is a function from files to the sentences that name a break. */
import {
  folderCircles,
  importCycles,
  impureImports,
  strayPackages,
  upwardImports,
} from "./import-rules.ts";
import {
  commentsOf,
  inSource,
  isSource,
  lineCount,
  type SourceFile,
  startsWithAny,
  testNamesOf,
  withoutComments,
} from "./source-tree.ts";

/** The ways to read the time and to wait for it. A method of a socket may be called `setTimeout`. */
const TIME =
  /\bDate\.now\b|\bDate\(\)|\bnew Date\b(?!\()|\bperformance\b|\bhrtime\b|(?<!\.)\bset(?:Timeout|Interval)\b|\bglobalThis\.set(?:Timeout|Interval)\b|\bAbortSignal\.timeout\b|\bscheduler\.wait\b/g;

/** Finds matches in the code of files below `src/`, other than `homes`. */
const matchesOutside =
  (pattern: RegExp, homes: readonly string[]) => (files: readonly SourceFile[]) =>
    files
      .filter((file) => isSource(file) && !startsWithAny(inSource(file.path), homes))
      .flatMap((file) =>
        [...withoutComments(file.text).matchAll(pattern)].map(
          ([found]) => `${file.path}: ${found}`,
        ),
      );

/** No file of code is longer. None is generated: what is generated is YAML, JSON, SQL or Markdown. */
const MAX_LINES = 400;

const longFiles = (files: readonly SourceFile[]) =>
  files
    .filter((file) => lineCount(file.text) > MAX_LINES)
    .map((file) => `${file.path} has ${lineCount(file.text)} lines`);

const barrels = (files: readonly SourceFile[]) =>
  files
    .filter((file) => isSource(file) && /\/index\.tsx?$/.test(file.path))
    .map((file) => file.path);

/** Matches a sentence that begins with "Of", which hides its subject, and words that hide who or what is meant. */
const HIDDEN_SUBJECT =
  /(?<=^|[.:;!?] )Of(?= )|\b(?:[Ww]hoever|[Nn]obody|[Tt]hat of|[Tt]he one which)\b/g;

/** Matches a comment that begins with what a value is, instead of naming it. */
const NO_SUBJECT =
  /^(?:(?:Null|True|False|Undefined|Empty|Set) (?:as|before|for|if|in|once|unless|until|when|where|while)|(?:Fewer|Larger|Longer|More|Shorter|Smaller) than|Never)\b/g;

/** It quotes what breaks the rule. */
const QUOTES = "test/architecture.test.ts";

/** Reads comments, and the names of tests. */
const hiddenSubjects = (files: readonly SourceFile[]) =>
  files
    .filter(({ path }) => path !== QUOTES)
    .flatMap(({ path, text }) =>
      [
        ...commentsOf(text).flatMap((comment) => [...comment.matchAll(NO_SUBJECT)]),
        ...[...commentsOf(text), ...(path.startsWith("test/") ? testNamesOf(text) : [])].flatMap(
          (words) => [...words.matchAll(HIDDEN_SUBJECT)],
        ),
      ].map(([found]) => `${path}: ${found}`),
    );

/** Matches a statement that leaves something at run time. A file of types has nothing to test. */
const IS_RUN = /^(?:export )?(?:async |abstract )?(?:const|let|function|class)\b/m;

/** A newcomer finds the test of a file by its name. */
const untestedEngineFiles = (files: readonly SourceFile[]) => {
  const paths = new Set(files.map(({ path }) => path));
  const testOf = (path: string) => path.replace(/^src\//, "test/").replace(/\.ts$/, ".test.ts");
  return files
    .filter(({ path }) => path.startsWith("src/engine/") && !paths.has(testOf(path)))
    .filter(({ text }) => IS_RUN.test(withoutComments(text)))
    .map(({ path }) => `${path} has no test`);
};

export const RULES = {
  "imports point down": upwardImports,
  "nothing imports in a circle": importCycles,
  "no two folders import each other": folderCircles,
  "each package is imported where it belongs": strayPackages,
  "the rules and the contract touch nothing outside": impureImports,
  "only config.ts reads the environment": matchesOutside(/process\.env\b/g, [
    "config/config.ts",
    "config/client.ts",
  ]),
  "only main.ts ends the process": matchesOutside(/process\.exit\b(?!Code)/g, ["main.ts"]),
  "only clock.ts knows what time it is": matchesOutside(TIME, ["clock.ts"]),
  // The rule knows four of the eight names. The others are also the names of events, reasons and counters.
  "a status is named only where batches are created, moved and stored": matchesOutside(
    /["'](?:validating|in_progress|finalizing|cancelling)["']/g,
    ["contract/", "batch/", "api/batches.ts", "api/batch-request.ts", "store/"],
  ),
  "SQL takes the names of statuses from the contract": (files: readonly SourceFile[]) =>
    matchesOutside(
      /'(?:validating|in_progress|finalizing|completed|failed|cancelling)'/g,
      [],
    )(files.filter((file) => file.path.startsWith("src/store/"))),
  "files stay short": longFiles,
  "each file of the engine has a test of its name": untestedEngineFiles,
  "no folder hides behind an index.ts": barrels,
  "comments and names of tests name their subject": hiddenSubjects,
} as const satisfies Record<string, (files: readonly SourceFile[]) => string[]>;
