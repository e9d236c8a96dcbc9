/** The web page shows nothing of another project, whatever its address names: as little as of what never was. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { operations } from "../support/api-places.ts";
import { pathsOfPages } from "../support/routes.ts";
import type { TestService } from "../support/service.ts";
import { signIn } from "../support/sign-in.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import {
  SECRET,
  startTenants,
  thingsOfAlpha,
  thingsOfBeta,
  unknownLike,
} from "../support/tenants.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";

let upstream: TestUpstream;
let service: TestService;
let foreign: Record<string, string>;
let own: Record<string, string>;
let cookie: string;
const folder = temporaryFolder("batchd-tenants-");
const alphas = temporaryFolder("batchd-tenants-");

beforeAll(async () => {
  upstream = await startUpstream();
  service = await startTenants(upstream, { folder: folder.path, alphas: alphas.path });
  own = await thingsOfBeta(service);
  foreign = await thingsOfAlpha(service, upstream);
  cookie = await signIn(service.url, "key-beta");
});
afterAll(async () => {
  upstream.release();
  await service[Symbol.asyncDispose]();
  await upstream[Symbol.asyncDispose]();
  folder[Symbol.dispose]();
  alphas[Symbol.dispose]();
});

/** The states of a thing make no difference here: the API tells none of them. */
const NAMED = ["output file", "completed batch", "open batch", "delivery", "pending upload"];
const TEXTS = ["location", "project", "text of a custom id"];

/** What the address of a page may name, besides its path. */
const QUERIES = ["after", "file", "from", "search", "metadata", "model", "project"];

async function answerTo(path: string, id: string): Promise<string> {
  const headers = { cookie, accept: "text/html", "sec-fetch-site": "same-origin" };
  const answer = await fetch(service.url + path, { headers, redirect: "manual" });
  const text = (await answer.text()).replaceAll(id, "ASKED");
  expect(text).not.toContain(SECRET);
  return `${answer.status} ${answer.headers.get("location")?.replaceAll(id, "ASKED")} ${text.replaceAll(/data-now="\d+"/g, "")}`;
}

async function expectUnknown(pathFor: (id: string) => string): Promise<void> {
  for (const what of [...NAMED, ...TEXTS]) {
    const id = foreign[what] as string;
    const unknown = unknownLike(id);
    expect(await answerTo(pathFor(id), id), what).toBe(await answerTo(pathFor(unknown), unknown));
  }
}

const pages = pathsOfPages();

test("every page is in the list", () => {
  expect(pages).toEqual(expect.arrayContaining(["/", "/batches/:id", "/files", "/usage"]));
});

describe.each(pages)("the page %s", (path) => {
  if (path.includes(":id")) {
    test("takes the id of another project for an unknown one", () =>
      expectUnknown((id) => path.replace(":id", id)));
  }

  test.each(QUERIES)("takes what another project has for unknown, by %s", async (query) => {
    const shown = path.replace(":id", own["batch_id"] as string);
    await expectUnknown((id) => `${shown}?${query}=${id}`);
  });
});

const reads = operations({ inPath: () => own, beside: () => undefined }).filter(
  ({ method, path, places }) =>
    method === "GET" && path.startsWith("/v1/") && places.some(({ isPath }) => isPath),
);

describe.each(reads)("what a page reads by $name", ({ places }) => {
  test.each(places.filter(({ isPath }) => isPath))("is unknown, by $name", (place) =>
    expectUnknown((id) => `/web${place.with(id).path}`),
  );
});
