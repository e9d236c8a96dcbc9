import { describe, expect, test } from "vitest";
import { UpstreamEntry } from "../../../src/config/upstreams.ts";
import type { BatchEndpoint } from "../../../src/contract/batch.ts";
import { Dialect, type Exchange } from "../../../src/upstream/exchange/dialect.ts";
import type { UpstreamRequest } from "../../../src/upstream/request.ts";

const dialectOf = (keys: Readonly<Record<string, unknown>>) =>
  new Dialect(
    UpstreamEntry.parse({ name: "t", base_url: "http://h:1/v1", models: ["*"], ...keys }),
  );

const requestOf = (request: Partial<UpstreamRequest> = {}): UpstreamRequest => ({
  project: "default",
  endpoint: "/v1/chat/completions",
  model: "public",
  isModelInBody: true,
  body: Buffer.from('{"model":"public","n":1}'),
  inputTokens: 6,
  answerTokens: 0,
  deadlineAtMs: 0,
  traceparent: null,
  ...request,
});

/** The exchange of a short body, which is ready at once. */
const exchangeOf = (dialect: Dialect, request: UpstreamRequest, model: string | null = null) =>
  dialect.exchangeOf(request, model) as Exchange;

const pathOf = (dialect: Dialect, endpoint: BatchEndpoint, upstreamModel: string | null = null) =>
  exchangeOf(dialect, requestOf({ endpoint }), upstreamModel).path;

const headersOf = ({ headers }: { readonly headers: readonly string[] }) =>
  Array.from({ length: headers.length / 2 }, (_, i) => headers.slice(2 * i, 2 * i + 2));
const header = (of: { readonly headers: readonly string[] }, name: string) =>
  headersOf(of)
    .filter(([each]) => each === name)
    .map(([, value]) => value);

describe("a path", () => {
  test.each([
    ["http://h/v1", "/v1/chat/completions"],
    ["http://h/v1/", "/v1/chat/completions"],
    ["http://h", "/chat/completions"],
    ["http://h/a/b/v1?x=1&y=%20", "/a/b/v1/chat/completions?x=1&y=%20"],
  ])("lies below the base address %s", (base_url, path) => {
    const dialect = dialectOf({ base_url });
    expect(pathOf(dialect, "/v1/chat/completions", "other")).toBe(path);
    expect(dialect.modelListPath).toBe(path.replace("/chat/completions", "/models"));
  });
});

describe("Azure", () => {
  const azure = { api_version: "2024-10-21" };
  const base_url = "https://x.openai.azure.com";

  test.each([base_url, `${base_url}/`, `${base_url}/openai`, `${base_url}/openai/`])(
    "has a path for each deployment, with the version, at %s",
    (base) => {
      expect(pathOf(dialectOf({ base_url: base, azure }), "/v1/embeddings")).toBe(
        "/openai/deployments/public/embeddings?api-version=2024-10-21",
      );
    },
  );

  test("calls a deployment what the target calls the model", () => {
    expect(pathOf(dialectOf({ base_url, azure }), "/v1/chat/completions", "a b/ü")).toBe(
      "/openai/deployments/a%20b%2F%C3%BC/chat/completions?api-version=2024-10-21",
    );
  });

  test("keeps the query and the folder of a gateway in front of it", () => {
    const dialect = dialectOf({ base_url: "https://gw.example.com/ai?tenant=7", azure });
    expect(pathOf(dialect, "/v1/chat/completions")).toBe(
      "/ai/openai/deployments/public/chat/completions?api-version=2024-10-21&tenant=7",
    );
  });

  test("takes responses beside the deployments, which then are named in the body", () => {
    const dialect = dialectOf({ base_url, azure: { api_version: "2025-04-01-preview" } });
    const exchange = exchangeOf(dialect, requestOf({ endpoint: "/v1/responses" }), "gpt");
    expect(exchange.path).toBe("/openai/responses?api-version=2025-04-01-preview");
    expect(exchange.body?.toString()).toBe('{"model":"gpt","n":1}');
  });

  test("has no deployments in its paths where the version has no date", () => {
    const dialect = dialectOf({ base_url, azure: { api_version: "preview" } });
    expect(pathOf(dialect, "/v1/chat/completions")).toBe(
      "/openai/v1/chat/completions?api-version=preview",
    );
  });

  test("gets its key in a header of its own, and is not asked for its models", () => {
    const dialect = dialectOf({ base_url, azure, api_key: "azure-key" });
    expect(header(dialect, "api-key")).toEqual(["azure-key"]);
    expect(header(dialect, "authorization")).toEqual([]);
    expect(dialect.modelListPath).toBeNull();
  });
});

describe("headers", () => {
  test("from the configuration replace ours of the same name, however it is written", () => {
    const headers = { "User-Agent": "me/1", Authorization: "Custom abc", "X-Team": "search" };
    const dialect = dialectOf({ api_key: "unused", headers });
    expect(header(dialect, "user-agent")).toEqual(["me/1"]);
    expect(header(dialect, "authorization")).toEqual(["Custom abc"]);
    expect(header(dialect, "x-team")).toEqual(["search"]);
    expect(header(dialect, "content-type")).toEqual(["application/json"]);
  });

  test("are the same for all requests, but for the trace they belong to", () => {
    const dialect = dialectOf({ headers: { "x-team": "search" } });
    expect(exchangeOf(dialect, requestOf()).headers).toBe(dialect.headers);
    const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const traced = exchangeOf(dialect, requestOf({ traceparent }));
    expect(headersOf(traced)).toEqual([...headersOf(dialect), ["traceparent", traceparent]]);
  });

  test.each(["Host", "content-length", "Transfer-Encoding", "expect", "proxy-authorization"])(
    "that HTTP itself speaks with are refused: %s",
    (name) => {
      expect(() => dialectOf({ headers: { [name]: "x" } })).toThrow("this header is batchd's own");
    },
  );
});

describe("a body", () => {
  const bodyOf = (
    keys: Readonly<Record<string, unknown>>,
    request: Partial<UpstreamRequest>,
    upstreamModel: string | null = null,
  ) => exchangeOf(dialectOf(keys), requestOf(request), upstreamModel).body;

  test("that has all it needs is sent as it is", () => {
    const request = requestOf();
    expect(bodyOf({}, request)).toBe(request.body);
  });

  test("without a model gets the public name, or the target's own", () => {
    const request = { isModelInBody: false, body: Buffer.from('{"n":1}') };
    expect(bodyOf({}, request)?.toString()).toBe('{"n":1,"model":"public"}');
    expect(bodyOf({}, request, "own")?.toString()).toBe('{"n":1,"model":"own"}');
  });

  test("gets defaults where it is silent, and extra fields in any case", () => {
    const keys = { defaults: { n: 2, seed: 7 }, extra_body: { user: "batch", stop: [] } };
    const body = Buffer.from('{"model":"public","n":1,"user":"me"}');
    expect(bodyOf(keys, { body })?.toString()).toBe(
      '{"model":"public","n":1,"user":"batch","stop":[],"seed":7}',
    );
  });
});
