import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { type AddressInfo, createServer as createNetServer } from "node:net";
import { buffer } from "node:stream/consumers";
import { xxhash128 } from "hash-wasm";
import { afterAll, describe, expect, test } from "vitest";
import { OxenLocation, type OxenSettings } from "../../src/locations/oxen/oxen.ts";
import { OxenApi } from "../../src/locations/oxen/oxen-api.ts";
import { listening } from "../support/listening.ts";
import { OxenServer } from "../support/oxen-server.ts";
import { aBrokenFile, aCall, aFile, aParcel, Progress, patternOf } from "../support/parcels.ts";
import { describeLocation } from "./suite.ts";

const servers: OxenServer[] = [];
afterAll(() => {
  for (const { http } of servers) {
    http.closeAllConnections();
    http.close();
  }
});

async function start(overrides: Partial<OxenSettings> = {}) {
  const server = new OxenServer();
  servers.push(server);
  await once(server.http.listen(0, "127.0.0.1"), "listening");
  const url = `http://127.0.0.1:${(server.http.address() as AddressInfo).port}`;
  return { server, location: locationAt({ url, ...overrides }) };
}

const locationAt = (settings: Partial<OxenSettings>) =>
  new OxenLocation({
    name: "data",
    url: "",
    repository: "ns/data",
    token: "oxen-token-4711",
    base: "main",
    author: { name: "batchd", email: "batchd@localhost" },
    timeoutMs: 30_000,
    ...settings,
  });

/** The files of the folder on the one branch that has it. */
function publishedOn(server: OxenServer, folder: string): Map<string, Buffer> {
  const found = [...server.branches.keys()]
    .filter((branch) => branch !== "main")
    .map((branch) => server.filesIn(branch, folder));
  return found.find((files) => files.size > 0) ?? new Map<string, Buffer>();
}

describeLocation("oxen", async () => {
  const { server, location } = await start();
  return {
    location,
    put: async (path, bytes) => void server.commit("main", new Map([[path, bytes]])),
    published: async (folder) => publishedOn(server, folder),
    largeBytes: 20_000_004,
    outermost: "runs/",
  };
});

describe("a delivery to an Oxen server", () => {
  test("is one commit on a new branch from the base, with trailers, and leaves no workspace", async () => {
    const { server, location } = await start();
    const base = server.branches.get("main");
    const parcel = aParcel({ title: "nightly" });
    const { address } = await location.deliver(parcel, aCall());
    const head = server.commits.get(server.branches.get("batch/nightly") ?? "");
    expect(head).toMatchObject({
      parent_ids: [base],
      author: "batchd",
      email: "batchd@localhost",
      message: expect.stringContaining(`\n\nBatch-Id: ${parcel.batchId}\nModel: small-chat\n`),
    });
    expect(address).toBe(`branch batch/nightly at ${head?.id}`);
    expect(server.branches.get("main")).toBe(base);
    expect(server.workspaces.size).toBe(0);
    expect([...server.authorizations]).toEqual(["Bearer oxen-token-4711"]);
  });

  test("twice is one commit, also when the answer to the first was lost", async () => {
    const { server, location } = await start();
    const parcel = aParcel({ title: "nightly" });
    const progress = new Progress();
    server.trouble = (method, path) => {
      if (!(method === "DELETE" && server.commits.size > 1)) return null;
      return path.startsWith("workspaces/") ? "break" : null;
    };
    const first = location.deliver(parcel, aCall({ progress }));
    await expect(first).rejects.toMatchObject({ failure: "unavailable" });
    server.trouble = null;
    await location.deliver(parcel, aCall({ progress }));
    await location.deliver(parcel, aCall());
    expect(server.commits.size).toBe(2);
    expect([...server.branches.keys()]).toEqual(["main", "batch/nightly"]);
  });

  test("that was killed before its commit goes on with its branch, and begins its workspace anew", async () => {
    const { server, location } = await start();
    const parcel = aParcel({ title: "nightly" });
    const progress = new Progress();
    const files = [
      aFile("stale.jsonl", "stale"),
      aBrokenFile(aFile("run.json", "{}"), 0, new Error("killed")),
    ];
    await expect(location.deliver({ ...parcel, files }, aCall({ progress }))).rejects.toThrow(
      "killed",
    );
    expect(server.branches.get("batch/nightly")).toBe(server.branches.get("main"));
    await location.deliver(parcel, aCall({ progress }));
    expect([...server.filesIn("batch/nightly", `runs/${parcel.batchId}`).keys()].sort()).toEqual([
      "errors.jsonl",
      "output.jsonl",
      "run.json",
    ]);
  });

  test("that is given up leaves neither its branch nor its workspace, and no branch of a person goes", async () => {
    const { server, location } = await start();
    const progress = new Progress();
    const files = [aBrokenFile(aFile("run.json", "{}"), 0, new Error("killed"))];
    const attempt = location.deliver(aParcel({ title: "nightly", files }), aCall({ progress }));
    await expect(attempt).rejects.toThrow("killed");
    await location.discard(progress.saved!, aCall());
    expect([[...server.branches.keys()], server.workspaces.size]).toEqual([["main"], 0]);
    server.branches.set("batch/nightly", server.branches.get("main")!);
    server.commit("batch/nightly", new Map([["a", Buffer.from("a")]]));
    await location.discard(progress.saved!, aCall());
    expect(server.branches.has("batch/nightly")).toBe(true);
  });

  test("leaves a branch alone that another batch or a person has", async () => {
    const { server, location } = await start();
    server.branches.set("batch/nightly", server.branches.get("main")!);
    const parcel = aParcel({ title: "nightly" });
    await location.deliver(parcel, aCall());
    expect(server.branches.get("batch/nightly")).toBe(server.branches.get("main"));
    expect(server.branches.has(`batch/nightly-${parcel.batchId.slice(-8)}`)).toBe(true);
  });

  test("sends a large file in chunks under its hash", async () => {
    const { server, location } = await start();
    const bytes = patternOf(20_000_004);
    const parcel = aParcel({
      title: "large",
      files: [aFile("output.jsonl", bytes), aFile("run.json", "{}")],
    });
    await location.deliver(parcel, aCall());
    expect(
      server.requests.filter((each) => /^PUT versions\/[0-9a-f]{32}\/chunks$/.test(each)).length,
    ).toBe(3);
    const published = server.filesIn("batch/large", `runs/${parcel.batchId}`);
    expect(published.get("output.jsonl")?.equals(bytes)).toBe(true);
  });

  test("commits on older servers as well", async () => {
    const { server, location } = await start();
    server.mergeVerb = "commit";
    await location.deliver(aParcel({ title: "nightly" }), aCall());
    expect(server.branches.has("batch/nightly")).toBe(true);
  });
});

describe("an Oxen server", () => {
  test.each([
    [429, "unavailable"],
    [503, "unavailable"],
    [401, "forbidden"],
    [422, "refused"],
    [302, "refused"],
  ] as const)("that answers %i is %s", async (status, failure) => {
    const { server, location } = await start();
    server.trouble = () => ({ status, body: { status_message: "words of the server" } });
    const failed = location.deliver(aParcel(), aCall());
    await expect(failed).rejects.toMatchObject({
      failure,
      message: `the Oxen server answers ${status} words of the server`,
    });
  });

  test("that never answers, or without end, costs neither time nor memory", async () => {
    const silent = locationAt({
      url: `http://127.0.0.1:${await listening(createServer(() => {}))}`,
      timeoutMs: 50,
    });
    const unanswered = silent.deliver(aParcel(), aCall());
    await expect(unanswered).rejects.toMatchObject({ failure: "unavailable" });
    await expect(unanswered).rejects.toMatchObject({
      message: expect.not.stringContaining("127.0.0.1"),
    });
    const piece = Buffer.alloc(64 * 1024, "x");
    const endless = createServer((_, answer) => {
      const send = () => {
        while (!answer.destroyed && answer.write(piece));
      };
      answer.on("drain", send);
      send();
    });
    const url = `http://127.0.0.1:${await listening(endless)}`;
    await expect(locationAt({ url }).deliver(aParcel(), aCall())).rejects.toThrow("too long");
    const interim = createNetServer((socket) => {
      const send = () => {
        while (!socket.destroyed && socket.write("HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1_000)));
      };
      socket
        .on("error", () => {})
        .on("drain", send)
        .once("data", send);
    });
    const interimUrl = `http://127.0.0.1:${await listening(interim)}`;
    await expect(locationAt({ url: interimUrl }).deliver(aParcel(), aCall())).rejects.toThrow(
      "UND_ERR_HEADERS_OVERFLOW",
    );
  });

  test("cannot choose addresses by the ids in its answers", async () => {
    const { server, location } = await start();
    server.trouble = () => ({
      status: 200,
      body: { branch: { name: "x", commit_id: "../../../x" } },
    });
    await expect(location.deliver(aParcel(), aCall())).rejects.toThrow(
      "without the id of a commit",
    );
  });
});

/** A real server, built by scripts/build-oxen-server.sh. Its token, where it asks for one, is in BATCHD_TEST_OXEN_TOKEN. */
const REAL_URL = process.env["BATCHD_TEST_OXEN_URL"];
const REAL_TOKEN = process.env["BATCHD_TEST_OXEN_TOKEN"];

/** A new repository on the real server. */
async function openReal() {
  const repository = `tests/batchd-${randomUUID()}`;
  const settings = { url: REAL_URL ?? "", repository, token: REAL_TOKEN ?? null };
  const signal = new AbortController().signal;
  const user = { name: "test", email: "test@localhost" };
  const made = await fetch(`${settings.url}/api/repos`, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      ...(REAL_TOKEN !== undefined && { authorization: `Bearer ${REAL_TOKEN}` }),
    },
    body: JSON.stringify({ namespace: "tests", name: repository.slice(6), user, description: "" }),
  });
  expect(made.ok).toBe(true);
  const api = new OxenApi({ ...settings, timeoutMs: 30_000 });
  const put = async (path: string, bytes: Buffer) => {
    const id = `put-${randomUUID()}`;
    const hash = await xxhash128(bytes);
    const [file_name = "", ...above] = path.split("/").toReversed();
    const entry = { hash, file_name, dst_dir: above.toReversed().join("/"), num_chunks: 1 };
    const workspace = { workspace_id: id, branch_name: "main" };
    await api.ask({ method: "PUT", path: ["workspaces"], body: workspace }, signal);
    const chunk = { path: ["versions", hash, "chunks"], query: { offset: "0" }, body: bytes };
    await api.ask({ method: "PUT", ...chunk }, signal);
    const complete = { files: [entry], workspace_id: id };
    await api.ask({ method: "POST", path: ["versions", hash, "complete"], body: complete }, signal);
    const message = { message: "a person was here", author: user.name, email: user.email };
    const merge = ["workspaces", id, "merge", "main"];
    await api.ask({ method: "POST", path: merge, body: message }, signal);
  };
  await put("README.md", Buffer.from("base\n"));
  const published = async (folder: string) => {
    const { body } = await api.ask({ method: "GET", path: ["branches"] }, signal);
    const found = new Map<string, Buffer>();
    for (const { name } of (body as { branches: { name: string }[] }).branches) {
      if (name === "main" || found.size > 0) continue;
      for (const file of ["output.jsonl", "output.csv", "errors.jsonl", "run.json"]) {
        const opened = await api.open(name, `${folder}/${file}`, signal);
        if (opened !== null) found.set(file, await buffer(opened.body));
      }
    }
    return found;
  };
  const location = locationAt(settings);
  return { location, put, published, largeBytes: 20_000_004, outermost: "runs/" };
}

if (REAL_URL !== undefined) describeLocation("a real oxen", openReal);
