import { expect, test } from "vitest";
import { refusalOf } from "../../../src/upstream/exchange/refusal.ts";

const refused = (message: string, status = 403) =>
  refusalOf({
    status,
    contentType: "application/json",
    body: Buffer.from(JSON.stringify({ error: { message } })),
  });

test.each([
  [403, "violat"],
  [401, "model "],
])(
  "a refusal with status %i that repeats '%s' many times is judged as fast as any other",
  (status, word) => {
    const busyMs = (message: string) => {
      const before = process.threadCpuUsage();
      for (let i = 0; i < 100; i++) expect(refused(message, status)?.reason).toBe("credentials");
      const { user, system } = process.threadCpuUsage(before);
      return (user + system) / 1000;
    };
    const other = "abcdef".repeat(2_700);
    busyMs(other);
    expect(busyMs(word.repeat(2_700))).toBeLessThan(100 + 5 * busyMs(other));
  },
);

test("a key that may not use a model is no refusal of the key, whatever else the answer says of models", () => {
  const isRefused = (message: string) => refused(message, 401) !== null;
  expect(isRefused(`${"model ".repeat(1_000)}m of this model is not found`)).toBe(false);
  expect(isRefused(`model ${"a".repeat(290)} not found`)).toBe(false);
  expect(isRefused(`model ${"a".repeat(310)} not found`)).toBe(true);
});

test("a violation of a policy is about the line", () => {
  expect(refused("The request violates our usage policies.")).toBeNull();
  expect(refused("Violations of the content policy were found.")).toBeNull();
});
