/**
 * Returns whether a name matches a pattern. `*` in a pattern stands for any characters, also for none. The time grows
 * with the length of the name, however many stars there are.
 */
export function matchesPattern(pattern: string, name: string): boolean {
  const [first = "", ...others] = pattern.split("*");
  const last = others.pop();
  if (last === undefined) return name === pattern;
  if (!name.startsWith(first)) return false;
  let at = first.length;
  for (const part of others) {
    const found = name.indexOf(part, at);
    if (found === -1) return false;
    at = found + part.length;
  }
  return name.length - last.length >= at && name.endsWith(last);
}

interface StarredPattern {
  readonly place: number;
  readonly pattern: string;
}

/** Some patterns, of which only those are compared with a name that begin as it does. */
class NamePatterns {
  /** The places of the patterns without a star. */
  readonly #exact = new Map<string, number>();
  /** The other patterns, by what stands before their first star. */
  readonly #starred = new Map<string, StarredPattern[]>();
  /** The lengths of what stands before the first stars. */
  readonly #lengths = new Set<number>();

  constructor(patterns: readonly string[]) {
    for (const [place, pattern] of patterns.entries()) {
      const length = pattern.indexOf("*");
      if (length === -1) {
        if (!this.#exact.has(pattern)) this.#exact.set(pattern, place);
        continue;
      }
      const beginning = pattern.slice(0, length);
      const alike = this.#starred.get(beginning) ?? [];
      alike.push({ place, pattern });
      this.#starred.set(beginning, alike);
      this.#lengths.add(length);
    }
  }

  /** Returns the place of the first pattern that the name matches; -1 without one. */
  placeOf(name: string): number {
    let first = this.#exact.get(name) ?? Number.POSITIVE_INFINITY;
    for (const length of this.#lengths) {
      const alike = this.#starred.get(name.slice(0, length)) ?? [];
      const found = alike.find(({ pattern }) => matchesPattern(pattern, name));
      if (found !== undefined && found.place < first) first = found.place;
    }
    return first === Number.POSITIVE_INFINITY ? -1 : first;
  }
}

/** The patterns of each list that was asked for. A list is the same one until the configuration or the rules change. */
const patternsOf = new WeakMap<object, NamePatterns>();

/**
 * Returns the first of a list whose pattern a name matches. An operator may configure thousands of patterns, and each line or each
 * model of a list asks for its own name, so what a list needs is worked out once.
 */
export function firstMatching<Of>(
  list: readonly Of[],
  patternOf: (one: Of) => string,
  name: string,
): Of | undefined {
  let patterns = patternsOf.get(list);
  if (patterns === undefined) {
    patterns = new NamePatterns(list.map(patternOf));
    patternsOf.set(list, patterns);
  }
  return list[patterns.placeOf(name)];
}
