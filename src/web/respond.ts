/** Answers with HTML, under a policy that lets a page load and run only the files of this server. */
import type { ContentfulStatusCode } from "hono/utils/http-status";
import type { AppContext } from "../http/context.ts";
import { type Html, render } from "./html.ts";

const PAGE_POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self'",
  "connect-src 'self'",
  "form-action 'self'",
  "base-uri 'none'",
  "frame-ancestors 'none'",
].join("; ");

/** What a browser is sent besides pages is never a document: it has no scripts, no styles and no origin. */
const DATA_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox";

const COMMON = {
  "x-content-type-options": "nosniff",
  "referrer-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
} as const;

export async function answerHtml(
  c: AppContext,
  page: Html,
  status: ContentfulStatusCode = 200,
): Promise<Response> {
  return c.body(await render(page), status, {
    ...COMMON,
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": PAGE_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
  });
}

/** Puts the headers for data on an answer that another part writes. */
export function protectData(c: AppContext): void {
  const { outgoing } = c.env;
  for (const [name, value] of Object.entries(COMMON)) outgoing.setHeader(name, value);
  outgoing.setHeader("content-security-policy", DATA_POLICY);
  outgoing.setHeader("cache-control", "no-store");
}
