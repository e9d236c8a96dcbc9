/** What scripts of packages define for the page. */
declare const Idiomorph: typeof import("idiomorph").Idiomorph;
declare const uPlot: typeof import("uplot");

interface PapaResult {
  readonly data: string[][];
  readonly errors: readonly { readonly row?: number; readonly message: string }[];
  readonly meta: { readonly delimiter: string };
}
interface PapaOptions {
  readonly delimiter?: string;
  readonly preview?: number;
  readonly skipEmptyLines?: "greedy";
}
declare const Papa: { parse(text: string, options: PapaOptions): PapaResult };
