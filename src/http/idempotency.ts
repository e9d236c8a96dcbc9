/** Answers requests with an `Idempotency-Key` over HTTP. `api/idempotency.ts` holds the rules. */
import type { Creation, Idempotency } from "../api/idempotency.ts";
import type { AppContext } from "./context.ts";
import { answerJsonText } from "./json.ts";

/** What a request asks for, where its body alone says it. */
export const asking = (asked: unknown): Pick<Creation<unknown>, "askedFor" | "reread"> => ({
  askedFor: () => asked,
  reread: async () => asked,
});

/** Answers a request that creates something. A repetition with the same key gets the first answer again. */
export async function answerOnce<Made>(
  c: AppContext,
  idempotency: Idempotency,
  creation: Creation<Made>,
): Promise<Response> {
  const { json, isReplayed } = await idempotency.answer(
    {
      project: c.get("project"),
      key: c.req.header("idempotency-key") ?? null,
      route: `${c.req.method} ${c.req.path}`,
    },
    creation,
  );
  if (isReplayed) c.header("idempotent-replayed", "true");
  // Every object has its id before all that a client wrote.
  c.set("objectId", /"id":"([\w-]+)"/.exec(json)?.[1]);
  return answerJsonText(c, json);
}
