/** The calls of an upload for the checks of section 8. */
import { accepted } from "../expect.ts";
import { line } from "../lines.ts";
import type { Answer, Json, Server } from "../server.ts";

export const CONTENT = `${line("one")}\n${line("two")}\n`;
export const HALVES = [CONTENT.slice(0, 100), CONTENT.slice(100)];

export const create = (main: Server, more: object = {}): Promise<Answer> =>
  main.post("/v1/uploads", {
    filename: "large.jsonl",
    purpose: "batch",
    bytes: CONTENT.length,
    mime_type: "text/jsonl",
    ...more,
  });

export function sendPart(
  main: Server,
  id: string,
  content: string | Uint8Array<ArrayBuffer>,
): Promise<Answer> {
  const form = new FormData();
  form.set("data", new Blob([content]));
  return main.call("POST", `/v1/uploads/${id}/parts`, { body: form });
}

export const partId = async (main: Server, id: string, content: string | Uint8Array<ArrayBuffer>) =>
  String(accepted(await sendPart(main, id, content))["id"]);

export const complete = (
  main: Server,
  id: string,
  part_ids: readonly string[],
  more: object = {},
) => main.post(`/v1/uploads/${id}/complete`, { part_ids, ...more });

/** Creates an upload whose two parts are the halves of the content. */
export async function withParts(main: Server, more: object = {}) {
  const id = String(accepted(await create(main, more))["id"]);
  const parts = [await partId(main, id, HALVES[0] ?? ""), await partId(main, id, HALVES[1] ?? "")];
  return { id, parts };
}

export const completed = async (main: Server, more: object = {}): Promise<Json> => {
  const { id, parts } = await withParts(main, more);
  return accepted(await complete(main, id, parts));
};
