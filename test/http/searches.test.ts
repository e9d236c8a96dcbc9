/** Searches read all batches of a project, so a project has so many under way. A client that leaves does not end its own. */
import { afterAll, expect, test, vi } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { startTestApi, wireOf } from "../support/test-http.ts";

const MOST = 16;

const keys = ["a", "b"].map((project) => ({ name: project, key: `key-${project}`, project }));
const api = forAllTests(await startTestApi({ keys }));
afterAll(() => void vi.restoreAllMocks());

const ask = (project: string, path: string, signal: AbortSignal | null = null) =>
  api.fetch(path, { headers: { authorization: `Bearer key-${project}` }, signal });

const statusOf = async (project: string, path: string) => (await ask(project, path)).status;

/** Holds the reads of one project. `held` resolves once so many are held. */
function holdReads(method: "listBatches" | "listUsage", project: string) {
  const released = Promise.withResolvers<void>();
  const held = Promise.withResolvers<void>();
  const read = api.store[method].bind(api.store) as (...args: unknown[]) => Promise<never>;
  let count = 0;
  vi.spyOn(api.store, method).mockImplementation(async (...args: unknown[]) => {
    if ((args[0] as { readonly project: string | null }).project === project) {
      if (++count === MOST) held.resolve();
      await released.promise;
    }
    return read(...args);
  });
  return { held: held.promise, release: released.resolve };
}

test.each([
  ["listBatches", "/v1/batches?search=nothing"],
  ["listUsage", "/v1/usage"],
] as const)(
  "%s: clients that ask and leave take no place of another project",
  async (method, path) => {
    const reads = holdReads(method, "a");
    const gone = new AbortController();
    const asked = Array.from({ length: MOST }, () => ask("a", path, gone.signal));
    await reads.held;
    gone.abort();
    await Promise.allSettled(asked);
    const refused = await ask("a", path);
    expect(refused.status).toBe(429);
    expect(refused.headers.get("retry-after")).toBe("1");
    expect((await wireOf(refused)).error.code).toBe("rate_limit_exceeded");
    expect(await statusOf("b", path)).toBe(200);
    reads.release();
    await vi.waitFor(async () => expect(await statusOf("a", path)).toBe(200));
  },
);
