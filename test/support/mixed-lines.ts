/** The lines of batches that are killed: their answers take different times, and one line in seventeen is refused. */
import { chatLines } from "./service.ts";

const isRefused = (n: number) => n % 17 === 0;

const contentOf = (n: number) =>
  `[[delay ${(n * 37) % 80}]] Say ${n}${isRefused(n) ? " [[status 400]]" : ""}`;

/** Returns the lines `line-1`, `line-2`, …, and the numbers of those that are answered and of those that are refused. */
export function mixedLines(count: number) {
  const numbers = Array.from({ length: count }, (_, i) => i + 1);
  return {
    lines: chatLines(count, contentOf),
    answered: numbers.filter((n) => !isRefused(n)),
    refused: numbers.filter(isRefused),
  };
}
