/**
 * The page for a request that fails before it is known who sends it, as while the database is away. A person would get the answer
 * for programs otherwise.
 */
import type { ContentfulStatusCode } from "hono/utils/http-status";
import type { ErrorEnvelope } from "../contract/error.ts";
import type { AppContext } from "../http/context.ts";
import { answerError } from "../http/errors.ts";
import { html, untrusted } from "./html.ts";
import { signedOutLayout } from "./layout.ts";
import { answerHtml } from "./respond.ts";

/** Where the page is, and where a person goes on. */
interface Place {
  readonly root: string;
  readonly next: string;
}

/** Answers as `work` does, and with a page that says what is wrong where it fails. */
export async function orFailurePage(
  c: AppContext,
  { root, next }: Place,
  work: () => Promise<Response>,
): Promise<Response> {
  try {
    return await work();
  } catch (thrown) {
    // The log gets it with the request.
    c.error = thrown as Error;
    const answer = answerError(c, thrown);
    const { error } = (await answer.json()) as ErrorEnvelope;
    const main = html`<p>${untrusted(error.message, 1_000)}</p>
<p><a href="${root}${next}">Try again</a></p>`;
    const page = signedOutLayout({ title: "Error", root }, main);
    return answerHtml(c, page, answer.status as ContentfulStatusCode);
  }
}
