/** Pieces of Markdown for generated pages. */

export const table = (head: readonly string[], rows: readonly (readonly string[])[]): string =>
  [head, head.map(() => "---"), ...rows].map((row) => `| ${row.join(" | ")} |`).join("\n");

export const code = (text: string): string => `\`${text}\``;
