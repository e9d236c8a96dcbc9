/** What scripts of packages define for the page. */
declare const Idiomorph: typeof import("idiomorph").Idiomorph;
declare const uPlot: typeof import("uplot");

interface PapaResult {
  readonly meta: { readonly delimiter: string; readonly linebreak: string };
}
interface PapaRow {
  readonly data: string[];
  readonly errors: readonly { readonly message: string }[];
}
interface PapaOptions {
  readonly delimiter?: string;
  readonly newline?: string;
  readonly preview?: number;
  readonly fastMode?: false;
  readonly skipEmptyLines?: "greedy";
  readonly step?: (row: PapaRow, parser: { abort(): void }) => void;
}
declare const Papa: { parse(text: string, options: PapaOptions): PapaResult };
