/**
 * The page as a client of the API. Every request of the page becomes a request to the same routes that programs use, in the
 * same process, with the caller that its session names. So project, scopes, quotas, limits, errors and the audit log are
 * those of the API, and the page can show and do nothing else.
 */
import { IncomingMessage, ServerResponse } from "node:http";
import { Socket } from "node:net";
import type { Hono } from "hono";
import type { Caller } from "../api/access.ts";
import type { ErrorEnvelope } from "../contract/error.ts";
import type { AppContext, AppEnv } from "../http/context.ts";

export type Answer<T> = { readonly ok: true; readonly value: T } | Refusal;

/** An error as the API says it. */
export interface Refusal {
  readonly ok: false;
  readonly status: number;
  readonly message: string;
}

export interface Reading {
  readonly caller: Caller;
  /** Whether the reading is one of the server's own polls. */
  readonly isPoll: boolean;
}

const ORIGIN = "http://localhost";

export class Api {
  readonly #app: Hono<AppEnv>;

  constructor(app: Hono<AppEnv>) {
    this.#app = app;
  }

  /** Reads an object or a list. */
  async get<T>(path: string, { caller, isPoll }: Reading): Promise<Answer<T>> {
    const incoming = new IncomingMessage(new Socket());
    const outgoing = new ServerResponse(incoming);
    const env = { incoming, outgoing, caller, isInternal: true, isUncounted: isPoll };
    const response = await this.#app.fetch(new Request(ORIGIN + path), env);
    const json: unknown = await response.json();
    // It has no connection that could close, and what the answer holds is free now.
    outgoing.emit("close");
    if (response.ok) return { ok: true, value: json as T };
    return { ok: false, status: response.status, message: (json as ErrorEnvelope).error.message };
  }

  /** Passes a request of the browser on, with its body and its connection, and returns the answer. */
  pass(c: AppContext, path: string, caller: Caller): Response | Promise<Response> {
    const { method, raw } = c.req;
    const { incoming, outgoing } = c.env;
    const request = new Request(ORIGIN + path, { method, headers: raw.headers });
    const requestId = c.get("requestId");
    return this.#app.fetch(request, { incoming, outgoing, caller, requestId });
  }
}
