/** Expectations that several checks share. */
import assert from "node:assert/strict";
import type { Answer, Batch, Json, Server } from "./server.ts";

export interface Refusal {
  readonly status: number;
  readonly message: string | RegExp;
  /** The values of the envelope; null when they are left out. */
  readonly param?: string;
  readonly code?: string;
  readonly type?: string;
}

/** Expects the one error envelope with these four values, and no other key. */
export function refused(
  answer: Pick<Answer, "status" | "text">,
  { status, message, param, code, type = "invalid_request_error" }: Refusal,
): void {
  assert.equal(answer.status, status, answer.text);
  const { error, ...others } = JSON.parse(answer.text) as { error: Json };
  assert.deepEqual(others, {});
  if (message instanceof RegExp) assert.match(String(error["message"]), message);
  else assert.equal(error["message"], message);
  const rest = { type: error["type"], param: error["param"], code: error["code"] };
  assert.deepEqual(rest, { type, param: param ?? null, code: code ?? null });
  assert.deepEqual(Object.keys(error).sort(), ["code", "message", "param", "type"]);
}

export function accepted(answer: Answer): Json {
  assert.equal(answer.status, 200, answer.text);
  return answer.json;
}

export const idsOn = (page: Json): string[] =>
  (page["data"] as { id: string }[]).map(({ id }) => id);

export const isSeconds = (value: unknown): boolean =>
  Number.isInteger(value) && Math.abs((value as number) - Date.now() / 1000) < 31 * 86_400;

/** Returns the entries of `errors` of a failed batch. */
export const faultsOf = (batch: Batch): Json[] => {
  assert.equal(batch.status, "failed", JSON.stringify(batch));
  return (batch["errors"] as { data: Json[] }).data;
};

export const completes = async (main: Server, lines: readonly string[], more: object = {}) => {
  const batch = await main.run(lines, more);
  assert.equal(batch.status, "completed", JSON.stringify(batch["errors"]));
  return batch;
};
