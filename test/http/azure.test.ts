/** The paths of Azure, each with a key. Its clients and their flows are in `conformance/facts/azure.ts`. */
import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { startTestService } from "../support/service.ts";

const KEY = "sk-of-azure-0001";
const API_VERSION = "2025-04-01-preview";

const service = forAllTests(
  await startTestService({
    config: { auth: { keys: [{ name: "azure", key: KEY }] } },
  }),
);

describe("a path of Azure", () => {
  test.each([
    "/openai/files",
    `/openai/files?api-version=${API_VERSION}`,
    "/openai/v1/files",
    "/openai/batches/",
    "//openai//batches",
    "/openai/deployments/any/batches",
    "/openai/deployments/with%2Fslash/batches",
    "/openai/models",
  ])("is one of ours, and asks for a key: %s", async (path) => {
    const ask = (headers: Record<string, string>) => fetch(service.url + path, { headers });
    expect((await ask({ "api-key": KEY })).status).toBe(200);
    expect((await ask({ authorization: `Bearer ${KEY}` })).status).toBe(200);
    expect((await ask({ "api-key": "wrong" })).status).toBe(401);
    expect((await ask({})).status).toBe(401);
  });

  test.each(["/openai/deployments", "/openai/deployments/any/nothing", "/openaiv1/files"])(
    "that is none of ours is told as it was asked for: %s",
    async (path) => {
      const answer = await fetch(service.url + path, { headers: { "api-key": KEY } });
      expect(answer.status).toBe(404);
      expect(await answer.text()).toContain(`Invalid URL (GET ${path})`);
    },
  );
});
