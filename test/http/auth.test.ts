import { createHash } from "node:crypto";
import { Agent, interceptors } from "undici";
import { describe, expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { rawRequest, uploadRequest } from "../support/raw-http.ts";
import { startTestApi, wireOf } from "../support/test-http.ts";

const KEY_A = "sk-alpha-0123456789abcdef";
const KEY_B = "sk-beta-fedcba9876543210";
const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");

const api = forAllTests(
  await startTestApi({
    keys: [
      { name: "a", key: KEY_A, project: "alpha" },
      { name: "b", key: `sha256:${sha256(KEY_B).toUpperCase()}`, project: "beta" },
    ],
  }),
);

async function call(path: string, headers: Record<string, string>, init: RequestInit = {}) {
  const response = await api.fetch(path, { headers, ...init });
  return {
    status: response.status,
    headers: response.headers,
    body: await wireOf(response),
  };
}

const bearer = (key: string) => ({ authorization: `Bearer ${key}` });
const basic = (credentials: string) => ({ authorization: `Basic ${btoa(credentials)}` });

describe("with keys configured", () => {
  test("a request without a key is refused", async () => {
    for (const headers of [
      {},
      { authorization: "" },
      { authorization: "Bearer" },
      { authorization: KEY_A },
      { authorization: "Basic abc" },
      basic(KEY_A),
      basic(`${KEY_A}:`),
      { "api-key": "" },
    ]) {
      const answer = await call("/v1/files", headers as Record<string, string>);
      expect(answer.status).toBe(401);
      expect(answer.body).toEqual({
        error: {
          message: "Missing bearer or basic authentication in header",
          type: "invalid_request_error",
          param: null,
          code: null,
        },
      });
      expect(answer.headers.get("x-request-id")).toMatch(/^req_/);
    }
  });

  test("a wrong key is refused and shown masked", async () => {
    const answer = await call("/v1/files", bearer("sk-wrong-0123456789abcdef"));
    expect(answer.status).toBe(401);
    expect(answer.body.error).toEqual({
      message:
        "Incorrect API key provided: sk-w****cdef. Ask the operator of this server for a key.",
      type: "invalid_request_error",
      param: null,
      code: "invalid_api_key",
    });
    expect((await call("/v1/files", basic(":short"))).body.error.code).toBe("invalid_api_key");
    for (const key of ["short", `${KEY_A} `.repeat(2), KEY_A.slice(1), sha256(KEY_B)]) {
      const { status, body } = await call("/v1/files", bearer(key));
      expect([status, body.error.code]).toEqual([401, "invalid_api_key"]);
      expect(body.error.message).not.toContain(key.trim());
    }
  });

  test("keys are accepted plain and as digests, in each header and any case of the scheme", async () => {
    for (const headers of [
      bearer(KEY_A),
      bearer(KEY_B),
      { authorization: `bearer   ${KEY_A}` },
      { "api-key": KEY_B },
      basic(`:${KEY_A}`),
      { ...basic("someone:the password of a proxy"), "api-key": KEY_B },
    ]) {
      const answer = await call("/v1/files", headers as Record<string, string>);
      expect(answer.status).toBe(200);
    }
  });

  test("paths and methods are told only to those with a key", async () => {
    expect((await call("/v1/nowhere", {})).status).toBe(401);
    expect((await call("/openai/v1/files", {})).status).toBe(401);
    expect((await call("/v1/files", {}, { method: "PUT" })).status).toBe(401);
    expect((await call("/v1/nowhere", bearer(KEY_A))).status).toBe(404);
  });

  test("supervisors need none", async () => {
    expect((await call("/health", {})).status).toBe(200);
    expect((await call("/ready", {})).status).toBe(200);
  });

  test("an upload without a key is refused before it is read, and seen to be", async () => {
    const form = new FormData();
    form.set("purpose", "batch");
    form.set("file", new Blob([Buffer.alloc(5_000_000, "x")]), "a.jsonl");
    const { status } = await call("/v1/files", {}, { method: "POST", body: form });
    expect(status).toBe(401);
  });

  test("an upload that waits for leave (`Expect: 100-continue`) is refused before its bytes come", async () => {
    const request = uploadRequest("", { length: 5_000_000 }).replace(
      "\r\n\r\n",
      "\r\nExpect: 100-continue\r\n\r\n",
    );
    const answer = await rawRequest(api.url, request);
    expect([answer.status, answer.headers["connection"]]).toEqual([401, "close"]);
  });

  test.each(["api-key", "authorization"])(
    "a cache that clients share keeps no answer to a key in %s for another one",
    async (header) => {
      const keepsAll = { type: "shared", cacheByDefault: 60_000 } as const;
      const cache = new Agent().compose(interceptors.cache(keepsAll));
      const statusWith = async (key: string) => {
        const headers = header === "api-key" ? { "api-key": key } : bearer(key);
        const asked = { origin: api.url, path: "/v1/files", method: "GET", headers } as const;
        const { statusCode, body } = await cache.request(asked);
        await body.dump();
        return statusCode;
      };
      expect([await statusWith(KEY_A), await statusWith("none")]).toEqual([200, 401]);
      await cache.close();
    },
  );

  test("no key is ever in the log", async () => {
    await call("/v1/files", bearer("sk-secret-wrong-0123456789"));
    const log = api.log.join("");
    expect(log).toContain("request.completed");
    for (const secret of [KEY_A, KEY_B, sha256(KEY_B), "sk-secret-wrong"]) {
      expect(log).not.toContain(secret);
    }
  });
});

test("without keys configured anything is accepted", async () => {
  await using open = await startTestApi();
  for (const headers of [{}, bearer("anything"), { "api-key": "x" }]) {
    const response = await open.fetch("/v1/files", { headers: headers as Record<string, string> });
    expect(response.status).toBe(200);
  }
});
