/** Defines what a page is made of, and finds the parts that have changed since it was sent. */
import type { Caller } from "../api/access.ts";
import { truncate } from "../text/truncate.ts";
import type { Answer, Api, Refusal } from "./api.ts";
import { type Html, html, render, untrusted } from "./html.ts";

/** A request for a page, or for what has changed on it. */
export interface Asked {
  readonly api: Api;
  readonly caller: Caller;
  readonly isPoll: boolean;
  /** The id in the path; empty for a page without one. */
  readonly id: string;
  readonly query: URLSearchParams;
  readonly root: string;
  readonly nowMs: number;
}

/** A page of a list of the API. */
export interface ListOf<T> {
  readonly data: readonly T[];
  readonly last_id: string | null;
  readonly has_more: boolean;
}

export interface View {
  readonly title: string;
  readonly parts: readonly Part[];
  /** Whether nothing on the page changes by itself any more. */
  readonly isOver: boolean;
}

/** An element with an id. When it changes, it is sent again. */
export interface Part {
  readonly id: string;
  readonly html: Html;
  /** Elements inside that are sent alone while the same ones are there. */
  readonly pieces?: readonly Part[];
}

export interface Page {
  /** The path as Hono's routes have it. */
  readonly path: string;
  /** The pause between two polls while the page is open; null for a page that stands still. */
  readonly pollMs: number | null;
  /** Scripts besides those of every page, in their order. */
  readonly scripts?: readonly string[];
  readonly styles?: readonly string[];
  view(asked: Asked): Promise<Answer<View>>;
}

export const readFor = <T>({ api, caller, isPoll }: Asked, path: string): Promise<Answer<T>> =>
  api.get<T>(path, { caller, isPoll });

/** A link by which a person goes on after an error. */
export interface WayBack {
  readonly href: string;
  readonly label: string;
}

/** The page for an error of the API, which may repeat what the address says. */
export const refusalView = ({ status, message }: Refusal, back: WayBack): View => ({
  title: status === 404 ? "Not found" : "Error",
  parts: [
    {
      id: "refusal",
      html: html`<section id="refusal" class="empty"><h1>${status === 404 ? "Not found" : "This did not work"}</h1><p>${withCode(message)}</p><p><a href="${back.href}">${back.label}</a></p></section>`,
    },
  ],
  isOver: true,
});

/** Writes what stands between backticks, such as a command, as code. */
const withCode = (message: string): Html[] =>
  truncate(message, 1_000)
    .split(/`([^`]+)`/)
    .map((text, at) =>
      at % 2 === 0 ? untrusted(text, 1_000) : html`<code>${untrusted(text, 1_000)}</code>`,
    );

/** The parts of a view by the id of their element. */
export type Snapshot = ReadonlyMap<string, RenderedPart>;

interface RenderedPart {
  readonly text: string;
  readonly pieces: ReadonlyMap<string, string>;
}

export async function snapshotOf({ parts }: View): Promise<Snapshot> {
  const rendered = await Promise.all(
    parts.map(async ({ id, html: content, pieces = [] }) => {
      const texts = await Promise.all(
        pieces.map(async (piece) => [piece.id, await render(piece.html)] as const),
      );
      return [id, { text: await render(content), pieces: new Map(texts) }] as const;
    }),
  );
  return new Map(rendered);
}

/** Returns the elements that a page with the snapshot `before` needs, by id. */
export function changesSince(before: Snapshot, after: Snapshot): Record<string, string> {
  const changes: Record<string, string> = {};
  for (const [id, part] of after) {
    const old = before.get(id);
    if (old?.text === part.text) continue;
    if (old !== undefined && part.pieces.size > 0 && haveSameKeys(old.pieces, part.pieces)) {
      for (const [pieceId, text] of part.pieces) {
        if (old.pieces.get(pieceId) !== text) changes[pieceId] = text;
      }
    } else {
      changes[id] = part.text;
    }
  }
  return changes;
}

function haveSameKeys(a: ReadonlyMap<string, string>, b: ReadonlyMap<string, string>): boolean {
  return [...a.keys()].join("\n") === [...b.keys()].join("\n");
}
