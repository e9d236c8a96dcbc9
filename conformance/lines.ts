/** Lines of batch input. The prompt may tell the test upstream what to do (test/support/directives.ts). */

export type Line = Record<string, unknown>;

/** What differs from an ordinary line; a key that is undefined is left out. */
export type LineChanges = Partial<Record<"custom_id" | "method" | "url" | "body", unknown>>;

const MODEL = "test-model";
/** Models of upstreams with ways of their own: one slot, little patience, another name upstream. */
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
