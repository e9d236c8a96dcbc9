/**
 * Replaces configured secrets in everything that leaves the process: answers of upstreams, error texts and the log.
 *
 * A model server may echo what it was sent, its key included, and what it answers is a tenant's to read. All other bytes
 * must stay what they are, so a secret is looked for as it stands, and in the ways in which JSON and addresses
 * write it. In bytes its place keeps its length, so that neither `content-length` nor a frame around it changes.
 *
 * It must never cost more than a search: an answer without a secret comes back as the same buffer.
 */

/** What is shorter, or a short word such as `ollama`, stands in too many texts to be replaced in them. */
const WORTH_HIDING = /^.{8,}$|^(?=.*\d)(?=.*\D).{6,}$/s;

/** So much of the beginning or the end of a secret counts as a part of it. */
const PART_CHARACTERS = 6;
const MASK = "[redacted]";
const FILL = 0x2a;
const NOTHING = Buffer.alloc(0);

/** The bytes or texts of one answer, in pieces. */
export interface RedactedStream {
  /** What may go on now. */
  push(chunk: Buffer): Buffer;
  /** What was held back because a secret could have begun in it. */
  end(): Buffer;
}

export class Redactor {
  /** None of them holds another one, which would be found in it: the fewer, the faster. The longest first. */
  #texts: readonly string[] = [];
  #needles: readonly Buffer[] = [];
  #longest = 0;

  constructor(secrets: Iterable<string> = []) {
    this.add(secrets);
  }

  /** Former secrets stay known: what was sent with them may still be answered. */
  add(secrets: Iterable<string>): void {
    const known = new Set(this.#texts);
    for (const secret of secrets) {
      if (!WORTH_HIDING.test(secret)) continue;
      for (const text of spellingsOf(secret)) known.add(text);
    }
    const needed = [...known].filter(
      (text) => ![...known].some((other) => other !== text && text.includes(other)),
    );
    this.#texts = needed.toSorted((a, b) => b.length - a.length);
    this.#needles = this.#texts.map((text) => Buffer.from(text));
    this.#longest = Math.max(0, ...this.#needles.map(({ length }) => length));
  }

  text(text: string): string {
    let clean = text;
    for (const secret of this.#texts) {
      if (clean.includes(secret)) clean = clean.replaceAll(secret, MASK);
    }
    return clean;
  }

  /** Takes out parts of secrets too, as a server shows a key that it refuses: for texts that are ours to change. */
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

  /** The same buffer when it holds no secret, else a copy of the same length. */
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

  /** The same in the bytes themselves, from `start` to `end`, and what ends there: of long bytes step by step. */
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
        // A secret that ends in the rest has been replaced already, and must not be found again in halves.
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

  /** Of the end of the bytes, as far as a secret may have begun there that the next piece goes on with. */
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

/** As it is, in JSON as several writers put it, and with percent signs. */
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
    // Go and Python's web frameworks, Gson, and .NET.
    escaped(/[<>&]/g, (code) => code),
    escaped(/[<>&='\u007f-\uffff]/g, (code) => code),
    escaped(/[<>&+'`\u007f-\uffff]/g, (code) => code.toUpperCase()),
    percentEncoded(secret),
  ]);
}

function percentEncoded(secret: string): string {
  return encodeURIComponent(secret.toWellFormed());
}
