import fc from "fast-check";
import { expect, test } from "vitest";
import { factsIfJson } from "../../../src/batch/answer-facts.ts";
import { NO_USAGE } from "../../../src/batch/batch.ts";
import { noAnswerLine, outcomeLine } from "../../../src/batch/outcome.ts";
import { ResultSummaries } from "../../../src/engine/results/result-summary.ts";
import { aBatch, aFile } from "../../support/store-builders.ts";

const line = (number: number) => ({ lineNumber: number, customId: Buffer.from(`"${number}"`) });

const rowOf = (body: string): Buffer =>
  Buffer.concat([
    ...outcomeLine(line(1), {
      kind: "answered",
      status: 200,
      requestId: 'r","body":{"model":"id"}',
      body: Buffer.from(body),
      usage: NO_USAGE,
    }),
  ]);

const DEPS = {
  store: { findRun: async () => null },
  upstreams: {
    findRoute: (model: string) => (model === "m" ? ({ key: "b,a" } as never) : null),
    findPeerRoute: () => ({ key: "c" }) as never,
  },
  fleet: { workers: [{ owner: "peer" }] },
};

async function summaryOf(bodies: readonly string[]) {
  const summaries = new ResultSummaries();
  for (const body of bodies) await summaries.add("output", rowOf(body), null);
  await summaries.add(
    "error",
    noAnswerLine(line(2), { code: "batch_expired", message: "model" }),
    null,
  );
  return summaries.finish(aBatch({ model: "m" }), { output: aFile(), error: null }, DEPS);
}

test("every answer counts, and only what it says at its top", async () => {
  const summary = await summaryOf([
    '{"model":"a","system_fingerprint":"f","choices":[{"model":"no"}]}',
    '{"model":"a","model":"b","system_fingerprint":null}',
    '{"mod\\u0065l":"b","text":"\\"model\\":\\"no\\""}',
    '[{"model":"no"}]',
    '{"model":5}',
    "null",
    '{"__proto__":{"model":"no"}}',
  ]);
  expect(summary.models).toEqual({
    names: [
      { name: "b", lines: 2 },
      { name: "a", lines: 1 },
    ],
    others: 0,
  });
  expect(summary.fingerprints).toEqual({ names: [{ name: "f", lines: 1 }], others: 0 });
  expect(summary.output?.lines).toBe(7);
  expect(summary.error).toBeNull();
});

test("names are bounded, and those without room are counted", async () => {
  const bodies = Array.from({ length: 130 }, (_, i) => `{"model":"m-${i}"}`);
  const { models } = await summaryOf([...bodies, ...bodies.slice(0, 1)]);
  expect(models.names).toHaveLength(100);
  expect(models.names[0]).toEqual({ name: "m-0", lines: 2 });
  expect(models.others).toBe(30);
});

test("the names that the journal has are those that a row is read for", async () => {
  const value = fc.oneof(
    fc.json({ maxDepth: 2 }),
    fc.constantFrom('"a"', '"\\u0061"', "null", '""'),
  );
  const key = fc.constantFrom("model", "system_fingerprint", "usage", "mod\\u0065l", "body", "x");
  const answer = fc.oneof(
    fc.array(fc.tuple(key, value), { maxLength: 6 }).map((members) => {
      return `{${members.map(([name, text]) => ` "${name}" : ${text}`).join()}}`;
    }),
    fc.json({ maxDepth: 2 }),
  );
  const summaryWith = async (bodies: readonly string[], isKnown: boolean) => {
    const summaries = new ResultSummaries();
    for (const body of bodies) {
      const facts = factsIfJson(Buffer.from(body));
      if (facts === null) throw new Error(`not JSON: ${body}`);
      await summaries.add("output", rowOf(body), isKnown ? facts.names : null);
    }
    return summaries.finish(aBatch({ model: "m" }), { output: aFile(), error: null }, DEPS);
  };
  const property = fc.asyncProperty(fc.array(answer, { maxLength: 5 }), async (bodies) => {
    expect(await summaryWith(bodies, true)).toEqual(await summaryWith(bodies, false));
  });
  await fc.assert(property, { numRuns: 300 });
});

test("a long answer is read in slices", async () => {
  const { models } = await summaryOf([`{"text":"${"x".repeat(1_000_000)}","model":"last"}`]);
  expect(models.names).toEqual([{ name: "last", lines: 1 }]);
});

test("the upstreams are those of all replicas", async () => {
  expect((await summaryOf(["{}"])).upstreams).toEqual(["a", "b", "c"]);
});
