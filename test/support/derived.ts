/** Asks for batches whose input is made of lines of other batches. */
import type OpenAI from "openai";
import type { TestService } from "./service.ts";

export type DerivedBatch = OpenAI.Batch & {
  readonly x_batchd: {
    readonly from: object | null;
    readonly waiting: { readonly reason: string; readonly since: number } | null;
    readonly deduplicated: number | null;
    readonly sample: number | null;
    readonly paused: { readonly reason: string } | null;
    readonly retried_by: readonly string[];
  };
  readonly error?: { readonly message: string; readonly param: string | null };
};

/** `fields` are those of the request besides the source. */
export async function derive(
  service: Pick<TestService, "url">,
  from: object,
  fields: object = {},
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

/** Resolves to a batch with the fields that only batchd has. */
export const look = async ({ openai }: Pick<TestService, "openai">, id: string) =>
  (await openai.batches.retrieve(id)) as DerivedBatch;

/** The template of a chat whose last message is `content`. */
export const chatTemplate = (content: string, more: object = {}) => ({
  model: "test-model",
  messages: [{ role: "user", content }],
  user: "{{custom_id}}",
  ...more,
});
