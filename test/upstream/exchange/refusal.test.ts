import { expect, test } from "vitest";
import { refusalOf } from "../../../src/upstream/exchange/refusal.ts";

const refused = (message: string) =>
  refusalOf({
    status: 403,
    contentType: "application/json",
    body: Buffer.from(JSON.stringify({ error: { message } })),
  });

test("a refusal that repeats a word of the request many times is judged as fast as any other", () => {
  const repeated = "violat".repeat(2_700);
  const other = "abcdef".repeat(2_700);
  const busyMs = (message: string) => {
    const before = process.threadCpuUsage();
    for (let i = 0; i < 20; i++) expect(refused(message)?.reason).toBe("credentials");
    const { user, system } = process.threadCpuUsage(before);
    return (user + system) / 1000;
  };
  busyMs(other);
  expect(busyMs(repeated)).toBeLessThan(100 + 5 * busyMs(other));
});

test("a violation of a policy is about the line", () => {
  expect(refused("The request violates our usage policies.")).toBeNull();
  expect(refused("Violations of the content policy were found.")).toBeNull();
});
