/**
 * The batches of a run, their lines, and the answers to them. All of it follows from the number of a batch, so that each
 * result can be checked.
 */
import { chatLine } from "../support/service.ts";
import { DELIVERIES } from "./places.ts";
import type { Sizes } from "./sizes.ts";

/** A model that has a limit of requests in flight, and one that has a limit of requests a minute. */
export const MODELS = ["in-flight", "per-minute"] as const;
export type Model = (typeof MODELS)[number];

/** The kinds take turns. A merged batch retries the deduplicated one before it, and a derived one asks about its answers. */
const KINDS = ["plain", "deduplicated", "merged", "derived"] as const;
type Kind = (typeof KINDS)[number];

/** A row of the result files. */
interface ResultLine {
  readonly customId: string;
  /** What the model is asked; several lines of a deduplicated batch ask the same. */
  readonly question: string;
}

const SECOND_QUESTION = "Say again: ";

const modelOf = (batch: number): Model => (batch % 2 === 0 ? "in-flight" : "per-minute");
const lineId = (batch: number, n: number) => `batch-${batch}-line-${n}`;
const numberOf = (question: string) => Number(/-line-(\d+)$/.exec(question)?.[1]);

/** Some lines have an end in the error file. */
export const isRefused = (question: string): boolean => numberOf(question) % 37 === 0;

export const usageFor = (question: string) => {
  const [prompt, completion] = [1 + (numberOf(question) % 7), 2 + (numberOf(question) % 11)];
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
  };
};

export const contentFor = (question: string): string => `The answer to ${question}`;

export function kindOf(batch: number, { projectCount }: Sizes): Kind {
  const round = Math.floor(batch / projectCount);
  return KINDS[round % KINDS.length] ?? "plain";
}

/** The batch of the same project whose lines this one takes; null for one with an input of its own. */
export function sourceOf(batch: number, sizes: Sizes): number | null {
  const kind = kindOf(batch, sizes);
  if (kind === "merged") return batch - sizes.projectCount;
  return kind === "derived" ? batch - 2 * sizes.projectCount : null;
}

/** What the request for the batch has beside the input. */
export function extensionOf(batch: number, sourceId: string | null, sizes: Sizes) {
  const deliver = deliveriesOf(batch, sizes);
  switch (kindOf(batch, sizes)) {
    case "plain":
      return null;
    case "deduplicated":
      return { deliver, dedupe: true };
    case "merged":
      return { deliver, from: { batch: sourceId, lines: "failed", merge: true } };
    case "derived":
      return {
        deliver,
        from: { batch: sourceId, lines: "succeeded", template: templateOf(batch) },
      };
  }
}

/** Servers of older versions take such a batch, too. */
export const isKnownToAll = (batch: number, sizes: Sizes): boolean =>
  kindOf(batch, sizes) === "plain";

export const deliveriesOf = (batch: number, sizes: Sizes) =>
  kindOf(batch, sizes) === "plain" ? [] : DELIVERIES;

const templateOf = (batch: number) => {
  const content = `${SECOND_QUESTION}{{output.choices.0.message.content}}`;
  return { model: modelOf(batch), messages: [{ role: "user", content }], user: content };
};

/** The rows of both result files, in the order of the lines. */
export function rowsOf(batch: number, sizes: Sizes): ResultLine[] {
  const source = sourceOf(batch, sizes);
  if (source === null) return ownLines(batch, sizes);
  const ofSource = rowsOf(source, sizes);
  if (kindOf(batch, sizes) === "merged") return ofSource;
  return ofSource
    .filter(({ question }) => !isRefused(question))
    .map(({ customId, question }) => ({
      customId,
      question: `${SECOND_QUESTION}${contentFor(question)}`,
    }));
}

/** The lines that the batch counts: a merged one counts those that ran again. */
export function countedLines(batch: number, sizes: Sizes): ResultLine[] {
  const rows = rowsOf(batch, sizes);
  if (kindOf(batch, sizes) !== "merged") return rows;
  return rows.filter(({ question }) => isRefused(question));
}

/** The questions that are sent for the batch, one for each time. */
export function questionsOf(batch: number, sizes: Sizes): string[] {
  const questions = countedLines(batch, sizes).map(({ question }) => question);
  const isSentOnce = ["deduplicated", "merged"].includes(kindOf(batch, sizes));
  return isSentOnce ? [...new Set(questions)] : questions;
}

export const inputOf = (batch: number, sizes: Sizes): string =>
  ownLines(batch, sizes)
    .map(({ customId, question }) => {
      const body = { model: modelOf(batch), user: question };
      return `${chatLine(customId, question, body)}\n`;
    })
    .join("");

/** In a deduplicated batch the second half of the lines asks what the first half does. */
function ownLines(batch: number, sizes: Sizes): ResultLine[] {
  const { linesPerBatch } = sizes;
  const isHalved = kindOf(batch, sizes) === "deduplicated";
  const questionCount = isHalved ? Math.ceil(linesPerBatch / 2) : linesPerBatch;
  return Array.from({ length: linesPerBatch }, (_, i) => ({
    customId: lineId(batch, i + 1),
    question: lineId(batch, (i % questionCount) + 1),
  }));
}
