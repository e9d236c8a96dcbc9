/** A retry of a retry, when a file of the chain was deleted in between: all lines of it, or a fault that says why not. */
import { afterAll, expect, test } from "vitest";
import { derive } from "../support/derived.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { chatLine, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const upstream = forAllTests(await startUpstream());
const service = forAllTests(await startTestService({ upstreamUrl: upstream.url }));
afterAll(() => upstream.release());

let runs = 0;
/** Lines 2, 4, 6 and 8 fail once, lines 4 and 8 twice. The test upstream counts the failures of each `user`. */
function newLines(): string[] {
  const run = ++runs;
  const contentOf = (n: number) =>
    n % 4 === 0 ? "[[status 400 x2]]" : n % 2 === 0 ? "[[status 400 x1]]" : "Hi";
  return [1, 2, 3, 4, 5, 6, 7, 8].map((n) =>
    chatLine(`line-${n}`, contentOf(n), { user: `${run}-${n}` }),
  );
}

type Role = "input" | "output" | "error";
interface Files {
  readonly input_file_id: string;
  readonly output_file_id?: string | null | undefined;
  readonly error_file_id?: string | null | undefined;
}
const idOf = (batch: Files, role: Role) => batch[`${role}_file_id`] ?? "none";
const retry = async (batch: string, merge: boolean) =>
  derive(service, { batch, lines: "failed", merge });

const CASES = [
  // The merged retry numbers its lines by the input of the first batch, of which the next input is made.
  { whose: "first", role: "input", merge: true, isRefused: true },
  { whose: "first", role: "output", merge: true, isRefused: false },
  { whose: "first", role: "error", merge: true, isRefused: false },
  { whose: "retry", role: "input", merge: true, isRefused: false },
  { whose: "retry", role: "output", merge: true, isRefused: true },
  { whose: "retry", role: "error", merge: true, isRefused: true },
  { whose: "first", role: "input", merge: false, isRefused: false },
  { whose: "retry", role: "input", merge: false, isRefused: true },
  { whose: "retry", role: "output", merge: false, isRefused: false },
  { whose: "retry", role: "error", merge: false, isRefused: true },
] as const;

type Case = (typeof CASES)[number];
const NAME = "the $role of the $whose batch (merge: $merge)";

async function expectLines(id: string, { merge }: Case) {
  const { status, output_file_id } = await service.ended(id);
  expect(status).toBe("completed");
  const rows = await service.rows(output_file_id);
  const numbers = merge ? [1, 2, 3, 4, 5, 6, 7, 8] : [4, 8];
  expect(rows.map((row) => row.custom_id)).toEqual(numbers.map((n) => `line-${n}`));
}

test.each(CASES)(`once all have ended, without ${NAME}`, async (given) => {
  const { whose, role, merge, isRefused } = given;
  const first = await service.run(newLines());
  const { batch: second } = await retry(first.id, merge);
  const ended = await service.ended(second.id);
  await service.openai.files.delete(idOf(whose === "first" ? first : ended, role));
  const { status, batch } = await retry(second.id, merge);
  expect([status, batch.error?.message]).toEqual(
    isRefused ? [409, expect.stringContaining("was deleted")] : [200, undefined],
  );
  if (!isRefused) await expectLines(batch.id, given);
});

/** A retry that runs has no results yet. */
const WHILE_IT_RUNS = CASES.filter(({ whose, role }) => whose === "first" || role === "input");

test.each(WHILE_IT_RUNS)(`while the retry runs, without ${NAME}`, async (given) => {
  const { whose, role, merge, isRefused } = given;
  const first = await service.run(newLines());
  const sent = upstream.total;
  upstream.hold();
  const { batch: second } = await retry(first.id, merge);
  await upstream.reached(sent + 1);
  const { batch: third } = await retry(second.id, merge);
  await service.openai.files.delete(idOf(whose === "first" ? first : second, role));
  upstream.release();
  if (!isRefused) {
    await expectLines(third.id, given);
    return;
  }
  const { status, errors } = await service.ended(third.id);
  expect([status, errors?.data?.[0]]).toMatchObject([
    "failed",
    { code: "source_unusable", message: expect.stringContaining("was deleted") },
  ]);
});
