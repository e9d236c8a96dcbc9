/** Makes lines of batch input. The prompt may hold directives for the test upstream (test/support/directives.ts). */

export type Line = Record<string, unknown>;

/** The difference from an ordinary line. A key that is undefined is left out. */
export type LineChanges = Partial<Record<"custom_id" | "method" | "url" | "body", unknown>>;

const MODEL = "test-model";
/** Models of special upstreams: one with one slot, one with a short timeout, one with another name of the model. */
export const NARROW = "narrow-model";
export const HASTY = "hasty-model";
export const ALIAS = "public/name:v1";

export const chatBody = (content: string, more: object = {}): Line => ({
  model: MODEL,
  messages: [{ role: "user", content }],
  ...more,
});

export const line = (customId: string, content = "Hello", changes: LineChanges = {}): string =>
  JSON.stringify({
    custom_id: customId,
    method: "POST",
    url: "/v1/chat/completions",
    body: chatBody(content, { user: customId }),
    ...changes,
  });

export const jsonl = (lines: readonly string[]): string => `${lines.join("\n")}\n`;
