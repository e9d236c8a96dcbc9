/**
 * The page for a request that fails before it is known who sends it, as while the database is away. A person would get the answer
 * for programs otherwise.
 */
import type { ContentfulStatusCode } from "hono/utils/http-status";
import type { ErrorEnvelope } from "../contract/error.ts";
import type { AppContext } from "../http/context.ts";
import { answerError } from "../http/errors.ts";
import { STYLES } from "./assets.ts";
import { html, untrusted } from "./html.ts";
import { head, mark } from "./layout.ts";
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
    const page = html`<!doctype html>
<html lang="en">
<head>
${head("Error", root, STYLES)}
</head>
<body class="signed-out">
<main id="main" class="sign-in">
<h1>${mark()}batchd</h1>
<p>${untrusted(error.message, 1_000)}</p>
<p><a href="${root}${next}">Try again</a></p>
</main>
</body>
</html>`;
    return answerHtml(c, page, answer.status as ContentfulStatusCode);
  }
}
