/** Asks for batches whose input is made of lines of other batches. */
import type OpenAI from "openai";
import type { TestService } from "./service.ts";

export type DerivedBatch = OpenAI.Batch & {
  readonly x_batchd: {
    readonly from: object | null;
    readonly waiting: { readonly reason: string; readonly since: number } | null;
    readonly deduplicated: number | null;
    readonly paused: object | null;
    readonly retried_by: readonly string[];
  };
  readonly error?: { readonly message: string; readonly param: string | null };
};

/** `fields` are those of the request besides the source. */
export async function derive(
  service: Pick<TestService, "url">,
  from: object,
  fields: Record<string, unknown> = {},
): Promise<{ readonly status: number; readonly batch: DerivedBatch }> {
  const response = await fetch(`${service.url}/v1/batches`, {
    method: "POST",
    body: JSON.stringify({
      endpoint: "/v1/chat/completions",
      completion_window: "24h",
      x_batchd: { from },
      ...fields,
    }),
  });
  return { status: response.status, batch: (await response.json()) as DerivedBatch };
}

/** The template of a chat whose last message is `content`. */
export const chatTemplate = (content: string, more: object = {}) => ({
  model: "test-model",
  messages: [{ role: "user", content }],
  user: "{{custom_id}}",
  ...more,
});
