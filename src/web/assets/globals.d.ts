/** What scripts of packages define for the page. */
declare const Idiomorph: typeof import("idiomorph").Idiomorph;
declare const uPlot: typeof import("uplot");

interface PapaResult {
  readonly data: Record<string, string>[];
  readonly errors: readonly { readonly row?: number; readonly message: string }[];
  readonly meta: { readonly fields?: string[] };
}
declare const Papa: {
  parse(
    file: File,
    options: {
      readonly header: true;
      readonly skipEmptyLines: "greedy";
      readonly complete: (result: PapaResult) => void;
    },
  ): void;
};
