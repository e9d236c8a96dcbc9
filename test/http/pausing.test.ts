import { expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { aBatch, insertBatchWith } from "../support/store-builders.ts";
import { startTestApi, type Wire, wireOf } from "../support/test-http.ts";

const api = forAllTests(await startTestApi());

async function ask(id: string, action: string, body?: string) {
  const response = await api.fetch(`/v1/batches/${id}/${action}`, {
    method: "POST",
    body: body ?? null,
  });
  const { headers, status } = response;
  return { status, headers, body: (await wireOf(response)) as Wire & Shown };
}
type Shown = { readonly x_batchd: { readonly paused: unknown }; readonly error: unknown };

test("pausing and resuming a batch twice changes nothing the second time", async () => {
  const { id } = aBatch();
  await api.store.insertBatch(aBatch({ id }));
  const first = await ask(id, "pause");
  expect([first.status, first.body.x_batchd.paused]).toEqual([
    200,
    { since: expect.any(Number), reason: "requested" },
  ]);
  for (const body of ["", "{}"]) {
    const again = await ask(id, "pause", body);
    expect([again.status, again.body]).toEqual([200, first.body]);
  }
  const listed = await wireOf(await api.fetch("/v1/batches?limit=100"));
  const data = listed["data"] as unknown as (Shown & { readonly id: string })[];
  expect(data.find((batch) => batch.id === id)?.x_batchd).toEqual(first.body.x_batchd);
  const resumed = await ask(id, "resume");
  expect([resumed.status, resumed.body.x_batchd.paused]).toEqual([200, null]);
  const again = await ask(id, "resume");
  expect([again.status, again.body]).toEqual([200, resumed.body]);
});

test.each(["finalizing", "completed", "failed", "expired", "cancelling", "cancelled"] as const)(
  "a batch that is %s is not paused, and says so",
  async (status) => {
    const answered = await ask((await insertBatchWith(api.store, status)).id, "pause");
    expect([answered.status, answered.headers.get("x-should-retry")]).toEqual([409, "false"]);
    expect(answered.body.error).toEqual({
      message: `Cannot pause a batch with status '${status}'.`,
      type: "invalid_request_error",
      param: null,
      code: null,
    });
  },
);

test.each(["completed", "failed", "expired", "cancelling", "cancelled"] as const)(
  "a batch that is %s is not resumed, and says so",
  async (status) => {
    const answered = await ask((await insertBatchWith(api.store, status)).id, "resume");
    expect(answered.status).toBe(409);
    expect(answered.body.error).toMatchObject({
      message: `Cannot resume a batch with status '${status}'.`,
    });
  },
);

test.each([
  ["pause", `{"reason": "budget"}`, "reason", "unknown_parameter"],
  ["resume", `{"budget": "7.00"}`, "budget", "unknown_parameter"],
  ["pause", "[]", null, "invalid_type"],
  ["pause", "{", null, null],
  ["pause?until=9", "", "until", "unknown_parameter"],
  ["resume?until=9", "", "until", "unknown_parameter"],
])("%s refuses what it would ignore, such as %s", async (action, sent, param, code) => {
  const { id } = aBatch();
  await api.store.insertBatch(aBatch({ id }));
  const { status, body } = await ask(id, action, sent);
  expect([status, body.error]).toMatchObject([400, { param, code }]);
  const shown = (await wireOf(await api.fetch(`/v1/batches/${id}`))) as Wire & Shown;
  expect(shown.x_batchd.paused).toBeNull();
});

test("a batch whose window is over is neither paused nor resumed nor cancelled", async () => {
  const batch = aBatch({ status: "in_progress", inProgressAtMs: 2_000, stopReason: "expired" });
  await api.store.insertBatch(batch);
  for (const action of ["pause", "resume", "cancel"]) {
    const answered = await ask(batch.id, action);
    expect(answered.status).toBe(409);
    expect(answered.body.error).toMatchObject({
      message: `Cannot ${action} a batch whose completion window is over.`,
    });
  }
});

test.each(["pause", "resume"])(
  "to %s, an unknown id is a 404 and a strange one a 400",
  async (action) => {
    expect((await ask("batch_unknown", action)).status).toBe(404);
    expect((await ask("file-x", action)).status).toBe(400);
    const wrong = await api.fetch(`/v1/batches/batch_x/${action}`, { method: "GET" });
    expect([wrong.status, wrong.headers.get("allow")]).toEqual([405, "POST"]);
  },
);
