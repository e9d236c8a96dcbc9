/**
 * Redacts configured secrets in all output: answers of upstreams, error texts and the log.
 *
 * A model server may echo its request, including the operator's key, and a tenant reads the answer. The redactor finds
 * a secret as it is, and in its spellings in JSON and addresses. All other bytes must stay the same. A redacted secret
 * in bytes keeps its length, so `content-length` and framing stay valid.
 *
 * The redactor must never cost more than a search: an answer without a secret comes back as the same buffer.
 */

/** Matches the texts to redact. Shorter ones, and short words such as `ollama`, occur in too many other texts. */
const WORTH_HIDING = /^.{8,}$|^(?=.*\d)(?=.*\D).{6,}$/s;

/** The length from which the beginning or the end of a secret counts as a part of it. */
const PART_CHARACTERS = 6;
/** Up to so many spellings, it is faster to look for each of them. */
const FEW = 32;
const MASK = "[redacted]";
const FILL = 0x2a;
const NOTHING = Buffer.alloc(0);

/** Redacts one answer that comes in pieces. */
export interface RedactedStream {
  /** Returns the bytes that may be sent now. */
  push(chunk: Buffer): Buffer;
  /** Returns the bytes that were held because a secret could have begun in them. */
  end(): Buffer;
}

export class Redactor {
  /** The spellings to find, the longest first: of one that contains another one nothing may be left. */
  #texts: readonly string[] = [];
  #index: Index = indexOf([]);
  #needles: readonly Buffer[] = [];
  #longest = 0;

  constructor(secrets: Iterable<string> = []) {
    this.add(secrets);
  }

  /** Adds secrets. Former ones stay, because answers to requests with them may still come. */
  add(secrets: Iterable<string>): void {
    const known = new Set(this.#texts);
    for (const secret of secrets) {
      if (!WORTH_HIDING.test(secret)) continue;
      for (const text of spellingsOf(secret)) known.add(text);
    }
    this.#texts = [...known].toSorted(longestFirst);
    this.#index = indexOf(this.#texts);
    this.#needles = this.#texts.map((text) => Buffer.from(text));
    this.#longest = this.#needles.reduce((most, { length }) => Math.max(most, length), 0);
  }

  text(text: string): string {
    let clean = text;
    const isFew = this.#texts.length <= FEW;
    const secrets = isFew ? this.#texts : [...foundIn(text, this.#index)].toSorted(longestFirst);
    for (const secret of secrets) {
      if (clean.includes(secret)) clean = clean.replaceAll(secret, MASK);
    }
    return clean;
  }

  /**
   * Redacts parts of secrets as well, because a server may quote a part of the key that it refuses. Use it only for
   * texts that batchd may change freely.
   */
  parts(text: string): string {
    return this.text(text).replaceAll(/\S+/g, (word) =>
      word !== MASK && (/\*{2,}/.test(word) || this.#holdsPart(word)) ? MASK : word,
    );
  }

  #holdsPart(word: string): boolean {
    return this.#texts.some(
      (secret) =>
        word.includes(secret.slice(0, PART_CHARACTERS)) ||
        word.includes(secret.slice(-PART_CHARACTERS)),
    );
  }

  /** Returns the same buffer when it holds no secret, else a copy of the same length. */
  bytes(bytes: Buffer): Buffer {
    let clean = bytes;
    for (const needle of this.#needles) {
      let at = clean.indexOf(needle);
      if (at === -1) continue;
      if (clean === bytes) clean = Buffer.from(bytes);
      for (; at !== -1; at = clean.indexOf(needle, at + needle.length)) {
        clean.fill(FILL, at, at + needle.length);
        if (needle.length >= MASK.length) clean.write(MASK, at, "latin1");
      }
    }
    return clean;
  }

  /**
   * Redacts in place, from `start` to `end`, including a secret that began before `start`. So a caller can redact long
   * bytes in steps.
   */
  mask(bytes: Buffer, start: number, end: number): void {
    const piece = bytes.subarray(Math.max(0, start - this.#longest), end);
    const clean = this.bytes(piece);
    if (clean !== piece) clean.copy(piece);
  }

  stream(): RedactedStream {
    let held: Buffer = NOTHING;
    return {
      push: (chunk) => {
        const bytes = held.length === 0 ? chunk : Buffer.concat([held, chunk]);
        const cut = bytes.length - this.#openLength(bytes);
        const clean = this.bytes(bytes);
        const rest = bytes.subarray(cut);
        // A secret that ends in the rest has already been redacted. The original bytes would show its second half.
        held = this.bytes(rest).equals(clean.subarray(cut)) ? rest : clean.subarray(cut);
        return clean.subarray(0, cut);
      },
      end: () => {
        const last = this.bytes(held);
        held = NOTHING;
        return last;
      },
    };
  }

  /** Returns the length of the end of the bytes that may be the beginning of a secret in the next piece. */
  #openLength(bytes: Buffer): number {
    const from = Math.max(0, bytes.length - this.#longest + 1);
    for (let at = from; at < bytes.length; at++) {
      const length = bytes.length - at;
      for (const needle of this.#needles) {
        if (needle[0] !== bytes[at] || needle.length <= length) continue;
        if (bytes.compare(needle, 0, length, at) === 0) return length;
      }
    }
    return 0;
  }
}

const longestFirst = (a: string, b: string) => b.length - a.length;

/** Spellings, and their lengths by their beginnings. A configuration may have thousands of keys, all of one form. */
interface Index {
  readonly texts: ReadonlySet<string>;
  readonly lengths: ReadonlyMap<string, ReadonlySet<number>>;
}

/** No spelling is shorter than its beginning. */
function indexOf(texts: Iterable<string>): Index {
  const lengths = new Map<string, Set<number>>();
  for (const text of texts) {
    const start = text.slice(0, PART_CHARACTERS);
    lengths.set(start, (lengths.get(start) ?? new Set()).add(text.length));
  }
  return { texts: new Set(texts), lengths };
}

function foundIn(text: string, { texts, lengths }: Index): Set<string> {
  const found = new Set<string>();
  for (let at = 0; at + PART_CHARACTERS <= text.length; at++) {
    for (const length of lengths.get(text.slice(at, at + PART_CHARACTERS)) ?? []) {
      const part = text.slice(at, at + length);
      if (texts.has(part)) found.add(part);
    }
  }
  return found;
}

/** Returns the secret as it is, in JSON as several writers escape it, and with percent signs. */
function spellingsOf(secret: string): Set<string> {
  const json = JSON.stringify(secret).slice(1, -1);
  const escaped = (characters: RegExp, digitsOf: (code: string) => string) =>
    json.replaceAll(characters, (character) => {
      const code = character.charCodeAt(0).toString(16).padStart(4, "0");
      return `\\u${digitsOf(code)}`;
    });
  return new Set([
    secret,
    json,
    json.replaceAll("/", "\\/"),
    // These three are for the web frameworks of Go and Python, for Gson, and for .NET.
    escaped(/[<>&]/g, (code) => code),
    escaped(/[<>&='\u007f-\uffff]/g, (code) => code),
    escaped(/[<>&+'`\u007f-\uffff]/g, (code) => code.toUpperCase()),
    encodeURIComponent(secret.toWellFormed()),
  ]);
}
