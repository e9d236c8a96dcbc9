/** Decides which files of a batch the input of another one is made of, and whether it can be. */
import type { Batch, BatchSource, FileId, MergedFiles, UntrustedId } from "./batch.ts";
import { parseTemplate } from "./template.ts";

/** What a batch takes from its source. */
export type Derivation = Pick<BatchSource, "lines" | "isMerged" | "template">;

/** The files that are read to make an input, or that it is merged with; null for one that is not. */
export interface SourceFiles<File> {
  readonly input: File;
  readonly output: File | null;
  readonly error: File | null;
}

/** Returns the file that numbers the lines of a batch. */
const numberedInputOf = ({ source, inputFileId }: Batch): UntrustedId<"file"> =>
  source?.merge?.inputFileId ?? inputFileId;

/** Whether any line of an ended batch ran. When none did, all of them count as failed. */
export const hasResults = ({ outputFileId, errorFileId }: Batch): boolean =>
  outputFileId !== null || errorFileId !== null;

/**
 * Returns the files that a merged batch is merged with; null for none. A source that ended before it ran passes on those
 * that it was to be merged with itself, where the same lines run again: without them the results would look whole and lack
 * the other lines.
 */
export function mergedFilesOf(source: Batch, { isMerged, lines }: Derivation): MergedFiles | null {
  if (!isMerged) return null;
  if (!hasResults(source)) return source.source?.lines === lines ? source.source.merge : null;
  const { outputFileId, errorFileId } = source;
  return { inputFileId: numberedInputOf(source), outputFileId, errorFileId };
}

/** Whether a stored template takes anything from the answers. */
export function readsOutput(template: string | null): boolean {
  const parsed = template === null ? null : parseTemplate(JSON.parse(template));
  if (parsed === null || typeof parsed === "string") return false;
  return parsed.placeholders.some(({ root }) => root === "output");
}

/** Returns the ids of the files that are needed. */
export function sourceFileIds(
  source: Batch,
  { isMerged, template }: Derivation,
): SourceFiles<UntrustedId<"file">> {
  const needsOutput = isMerged || readsOutput(template);
  const output: FileId | null = needsOutput ? source.outputFileId : null;
  // Without results there is nothing to merge with, and the lines are the batch's own.
  const input = hasResults(source) ? numberedInputOf(source) : source.inputFileId;
  return { input, output, error: source.errorFileId };
}

const VERBS = { failed: "failed", succeeded: "succeeded", all: "can run again" } as const;

export const noSuchLines = ({ id, status }: Batch, { lines }: Derivation): string =>
  `The batch '${id}' with status '${status}' has no lines that ${VERBS[lines]}.`;

/** Returns why no input can be made of an ended batch, as far as that is known before its files are read. */
export function sourceProblem<File>(
  source: Batch,
  derivation: Derivation,
  found: SourceFiles<File | null>,
): string | null {
  const { id, status } = source;
  if (status === "failed") return `Cannot run lines of a batch with status '${status}' again.`;
  if (source.isInputPending) {
    return `The batch '${id}' ended before its input was made. Name '${source.source?.batchId}', which it was to be made of, in its place.`;
  }
  // The files that an unstarted source was to be merged with lack the rows of its own lines, which only the same lines fill in.
  const former = derivation.isMerged && !hasResults(source) ? source.source : null;
  if (former?.isMerged && former.lines !== "all" && former.lines !== derivation.lines) {
    return `The batch '${id}' ended before its lines ran, so its results can be merged for '${former.lines}' alone. Name '${former.batchId}', which it was made of, in its place.`;
  }
  if (found.input === null) {
    return `The input file of the batch '${id}' was deleted. Upload its lines again.`;
  }
  const wanted = sourceFileIds(source, derivation);
  if (wanted.error !== null && found.error === null) {
    return `A result file of the batch '${id}' was deleted, so it is not known which of its lines failed.`;
  }
  if (wanted.output !== null && found.output === null) {
    return `A result file of the batch '${id}' was deleted, so its answers are not known.`;
  }
  const { lines } = derivation;
  const isNone =
    lines === "failed"
      ? hasResults(source) && source.errorFileId === null
      : lines === "succeeded" && source.outputFileId === null;
  return isNone ? noSuchLines(source, derivation) : null;
}
