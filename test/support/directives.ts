/**
 * Parses the directives for the test upstream in the prompt of a line: `[[status 429 x3]] [[delay 50]]`.
 *
 * A directive is a pair of brackets with commands in it. With `xN` it holds for N requests of its line. Several such
 * directives follow each other: `[[status 500 x1]] [[reset x2]]` is one 500, two resets, then an answer. Without `xN`
 * it holds for all requests of the line, unless the current `xN` overrides it.
 *
 * | Command | Effect |
 * |---|---|
 * | `status S` | an error envelope with status S |
 * | `retry-after-ms N`, `retry-after T` | the header; T is seconds or a date with `_` for each space |
 * | `delay N` | N ms before the answer begins |
 * | `slow P N` | the answer in P pieces, N ms apart |
 * | `hang` | no answer, ever |
 * | `reset`, `reset-mid` | the connection is reset before, or in the middle of, the answer |
 * | `garbage` | bytes that are not HTTP |
 * | `html S`, `text S`, `empty S` | status S with a page, a sentence or nothing as its body |
 * | `sse` | status 200 with server-sent events |
 * | `truncate` | status 200 with the first half of the JSON, in complete HTTP |
 * | `bigint` | JSON that only survives byte for byte, printed over several lines |
 * | `big N` | an answer of N bytes |
 */

type BodyKind = "json" | "html" | "text" | "empty" | "sse" | "truncate" | "bigint";

export interface Directives {
  status: number;
  body: BodyKind;
  headers: Record<string, string>;
  delayMs: number;
  pieces: { count: number; everyMs: number };
  /** The fault that takes the place of an answer. */
  fault: "none" | "hang" | "reset" | "reset-mid" | "garbage";
  bigBytes: number;
}

/** The arguments and effects of each command. */
const COMMANDS: Record<string, (directives: Directives, args: () => string) => void> = {
  status: (d, next) => {
    d.status = Number(next());
  },
  "retry-after-ms": (d, next) => {
    d.headers["retry-after-ms"] = next();
  },
  "retry-after": (d, next) => {
    d.headers["retry-after"] = next().replaceAll("_", " ");
  },
  delay: (d, next) => {
    d.delayMs = Number(next());
  },
  slow: (d, next) => {
    d.pieces = { count: Number(next()), everyMs: Number(next()) };
  },
  big: (d, next) => {
    d.bigBytes = Number(next());
  },
  html: withBody("html"),
  text: withBody("text"),
  empty: withBody("empty"),
  sse: (d) => {
    d.body = "sse";
  },
  truncate: (d) => {
    d.body = "truncate";
  },
  bigint: (d) => {
    d.body = "bigint";
  },
  hang: withFault("hang"),
  reset: withFault("reset"),
  "reset-mid": withFault("reset-mid"),
  garbage: withFault("garbage"),
};

function withBody(body: BodyKind) {
  return (directives: Directives, next: () => string) => {
    directives.body = body;
    directives.status = Number(next());
  };
}

function withFault(fault: Directives["fault"]) {
  return (directives: Directives) => {
    directives.fault = fault;
  };
}

/** Returns the directives for request number `count` (from 1) of a line with this prompt. */
export function directivesFor(prompt: string, count: number): Directives {
  const directives: Directives = {
    status: 200,
    body: "json",
    headers: {},
    delayMs: 0,
    pieces: { count: 1, everyMs: 0 },
    fault: "none",
    bigBytes: 0,
  };
  const groups = [...prompt.matchAll(/\[\[([^\]]+)\]\]/g)].map(([, words]) =>
    (words as string).trim().split(/\s+/),
  );
  let before = 0;
  let now: readonly string[] = [];
  for (const words of groups) {
    const times = /^x(\d+)$/.exec(words.at(-1) ?? "")?.[1];
    if (times === undefined) apply(words, directives);
    else if (count > before && count <= before + Number(times)) now = words.slice(0, -1);
    before += Number(times ?? 0);
  }
  apply(now, directives);
  return directives;
}

function apply(words: readonly string[], directives: Directives): void {
  const rest = [...words];
  const next = () => {
    const word = rest.shift();
    if (word === undefined) throw new Error(`a directive is cut short: [[${words.join(" ")}]]`);
    return word;
  };
  while (rest.length > 0) {
    const name = next();
    const command = COMMANDS[name];
    if (command === undefined) throw new Error(`unknown directive: ${name}`);
    command(directives, next);
  }
}
