/** The lines of a run and the answers to them. Both follow from the `custom_id`, so that each result can be checked. */
import { chatLine } from "../support/service.ts";

/** A model that has a limit of requests in flight, and one that has a limit of requests a minute. */
export const MODELS = ["in-flight", "per-minute"] as const;
export type Model = (typeof MODELS)[number];

const modelOf = (batch: number): Model => (batch % 2 === 0 ? "in-flight" : "per-minute");
const lineId = (batch: number, n: number) => `batch-${batch}-line-${n}`;
const numberOf = (customId: string) => Number(/-line-(\d+)$/.exec(customId)?.[1]);

/** Some lines have an end in the error file. */
export const isRefused = (customId: string): boolean => numberOf(customId) % 101 === 0;

export const usageFor = (customId: string) => {
  const [prompt, completion] = [1 + (numberOf(customId) % 7), 2 + (numberOf(customId) % 11)];
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
  };
};

export const contentFor = (customId: string): string => `The answer to ${customId}`;

export const idsOf = (batch: number, lineCount: number): string[] =>
  Array.from({ length: lineCount }, (_, i) => lineId(batch, i + 1));

export const inputOf = (batch: number, lineCount: number): string =>
  idsOf(batch, lineCount)
    .map((id) => `${chatLine(id, id, { model: modelOf(batch) })}\n`)
    .join("");
