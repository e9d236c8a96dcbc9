/** Repositories over http and ssh, by the real protocols of git. The credentials of a push are not to be seen meanwhile. */
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  writeFileSync,
} from "node:fs";
import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type ServerResponse,
} from "node:http";
import { basename, dirname, join } from "node:path";
import { Readable } from "node:stream";
import { buffer } from "node:stream/consumers";
import { afterEach, expect, test } from "vitest";
import type { DeliveryObject } from "../../src/contract/delivery.ts";
import { expectToWait } from "../support/away-place.ts";
import { TestRepository } from "../support/git-repository.ts";
import { listening } from "../support/listening.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { temporaryFolder } from "../support/store-builders.ts";
import { startUpstream } from "../support/upstream.ts";

const PASSWORD = "a-password-that-nothing-may-show";
const PATH = process.env["PATH"];
afterEach(() => {
  process.env["PATH"] = PATH;
});

/** Serves a repository with the real `git http-backend` to those who know the password. */
function serveOverHttp({ path }: TestRepository) {
  const right = `Basic ${Buffer.from(`batchd:${PASSWORD}`).toString("base64")}`;
  const serve = (asked: IncomingMessage, answer: ServerResponse) => {
    if (asked.headers.authorization !== right) {
      asked.resume();
      answer.writeHead(401, { "www-authenticate": 'Basic realm="git"' }).end();
      return;
    }
    const { pathname, search } = new URL(asked.url ?? "", "http://localhost");
    const child = spawn("git", ["http-backend"], {
      env: {
        PATH,
        GIT_PROJECT_ROOT: dirname(path),
        GIT_HTTP_EXPORT_ALL: "1",
        PATH_INFO: pathname,
        QUERY_STRING: search.slice(1),
        REMOTE_USER: "batchd",
        REQUEST_METHOD: asked.method,
        CONTENT_TYPE: asked.headers["content-type"],
        HTTP_CONTENT_ENCODING: asked.headers["content-encoding"] ?? "",
        GIT_PROTOCOL: String(asked.headers["git-protocol"] ?? ""),
      },
      stdio: ["pipe", "pipe", "ignore"],
    });
    asked.pipe(child.stdin).on("error", () => {});
    void answerFrom(child.stdout, answer);
  };
  return createServer(serve);
}

/** Passes the answer of a CGI program on: headers, an empty line, and the body. */
async function answerFrom(output: AsyncIterable<Buffer>, answer: ServerResponse): Promise<void> {
  let head: Buffer | null = Buffer.alloc(0);
  for await (const piece of output) {
    if (head === null) {
      answer.write(piece);
      continue;
    }
    head = Buffer.concat([head, piece]);
    const end = head.indexOf("\r\n\r\n");
    if (end === -1) continue;
    const headers = head.subarray(0, end).toString().split("\r\n");
    const pairs = headers.map((line) => line.split(/: (.*)/s).slice(0, 2) as [string, string]);
    const status = pairs.find(([name]) => name.toLowerCase() === "status")?.[1] ?? "200";
    answer.writeHead(Number.parseInt(status, 10), Object.fromEntries(pairs));
    answer.write(head.subarray(end + 4));
    head = null;
  }
  answer.end();
}

/** Makes each push wait, so that its processes can be looked at. */
function waitInPush({ path }: TestRepository, folder: string) {
  const [entered, left] = [join(folder, "entered"), join(folder, "left")];
  const hook = join(path, "hooks", "pre-receive");
  const wait = `cat > /dev/null\ntouch '${entered}'\nwhile [ ! -e '${left}' ]; do sleep 0.05; done`;
  writeFileSync(hook, `#!/bin/sh\n${wait}\n`);
  chmodSync(hook, 0o755);
  return { entered: () => existsSync(entered), leave: () => writeFileSync(left, "") };
}

/** The arguments of all processes of this machine. */
const argumentsOfAll = (): string =>
  readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map((pid) => {
      try {
        return readFileSync(`/proc/${pid}/cmdline`, "utf8");
      } catch {
        return "";
      }
    })
    .join("\n");

async function deliverOnce(repository: TestRepository, location: Record<string, unknown>) {
  using folder = temporaryFolder("batchd-push-");
  const push = waitInPush(repository, folder.path);
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { locations: [{ name: "evals", kind: "git", access: "write", ...location }] },
  });
  const { id } = await service.run(chatLines(2));
  await service.openai.post(`/batches/${id}/deliveries`, { body: { location: "evals" } });
  await expect.poll(push.entered, { timeout: 60_000 }).toBe(true);
  const processes = argumentsOfAll();
  push.leave();
  await service.events.reached("delivery.delivered", { batch: id });
  const history = await service.openai.get(`/batches/${id}/deliveries`);
  expect(repository.branches).toEqual([`batch/${id}`, "main"]);
  const files = repository.filesIn(`batch/${id}`, `runs/${id}`);
  const { output_file_id } = await service.openai.batches.retrieve(id);
  expect(files.get("output.jsonl")?.toString()).toBe(await service.text(output_file_id));
  expect(repository.text("fsck", "--full", "--no-dangling")).toBe("");
  return { processes, shown: JSON.stringify([service.events.all, history]) };
}

test.each([
  [200, "text/html", "<html>Log in</html>", "shows no branch"],
  [404, "text/html", "<html>Not found</html>", "not found"],
  [404, "text/plain", "404 page not found\n", "404 page not found"],
  [404, "text/plain", "default backend - 404", "default backend - 404"],
])("results wait for a repository in whose place a proxy answers %i %s %s", async (...page) => {
  const [pageStatus, type, text, words] = page;
  using repository = new TestRepository();
  repository.git("config", "http.receivepack", "true");
  let isAway = true;
  const server = serveOverHttp(repository);
  const [serve] = server.listeners("request") as [RequestListener];
  server.removeAllListeners("request").on("request", (asked, answer) => {
    if (isAway) answer.writeHead(pageStatus, { "content-type": type }).end(text);
    else serve(asked, answer);
  });
  const address = `http://127.0.0.1:${await listening(server)}/${basename(repository.path)}`;
  const evals = { name: "evals", kind: "git", access: "write", repository: address };
  const id = await expectToWait({
    location: { ...evals, username: "batchd", password: PASSWORD },
    message: expect.stringContaining(words) as string,
    comeBack: () => {
      isAway = false;
    },
  });
  expect(repository.branches).toEqual([`batch/${id}`, "main"]);
});

test("a delivery to a repository that its server does not know fails at once", async () => {
  const server = createServer((_, answer) => {
    answer.writeHead(404, { "content-type": "text/plain" }).end("Repository not found\n");
  });
  const repository = `http://127.0.0.1:${await listening(server)}/none.git`;
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { locations: [{ name: "evals", kind: "git", access: "write", repository }] },
  });
  const { id } = await service.run(chatLines(1));
  const made = await service.openai.post(`/batches/${id}/deliveries`, {
    body: { location: "evals" },
  });
  const { id: delivery } = made as DeliveryObject;
  const tries = ["delivery.given_up", "delivery.attempt_failed"] as const;
  await Promise.race(tries.map((end) => service.events.reached(end, { delivery })));
  expect(await service.openai.get(`/batches/${id}/deliveries/${delivery}`)).toMatchObject({
    status: "failed",
    error: { message: expect.stringContaining("Repository not found") as string },
  });
});

test("a file of a repository that goes away is no file that is too long, however large the trees are", async () => {
  using repository = new TestRepository();
  repository.git("config", "uploadpack.allowFilter", "true");
  const names = Array.from(
    { length: 2_000 },
    (_, n) => `${n % 16}/${randomBytes(60).toString("hex")}`,
  );
  repository.commit(
    Object.fromEntries([...names, "input.jsonl"].map((name) => [name, `${name}\n`])),
  );
  // Branches are listed first, and then their trees are fetched.
  let lookCount = 0;
  const server = serveOverHttp(repository);
  const [serve] = server.listeners("request") as [RequestListener];
  server.removeAllListeners("request").on("request", (asked, answer) => {
    if (asked.url?.includes("/info/refs") && asked.headers.authorization) lookCount++;
    if (lookCount > 2) answer.writeHead(503).end();
    else serve(asked, answer);
  });
  const address = `http://127.0.0.1:${await listening(server)}/${basename(repository.path)}`;
  const evals = { name: "evals", kind: "git", access: "read", repository: address };
  await using service = await startTestService({
    config: {
      limits: { max_file_bytes: 1_000 },
      locations: [{ ...evals, username: "batchd", password: PASSWORD }],
    },
  });
  const answer = await fetch(`${service.url}/v1/files`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      purpose: "batch",
      x_batchd: { input: { location: "evals", path: "input.jsonl" } },
    }),
  });
  expect([answer.status, await answer.text(), lookCount]).toEqual([
    503,
    expect.stringContaining("503"),
    3,
  ]);
});

test("a repository that holds folders back is not asked for them, as they might have no end", async () => {
  using repository = new TestRepository();
  repository.git("config", "uploadpack.allowFilter", "true");
  repository.commit({ "in/input.jsonl": "{}\n" });
  const server = serveOverHttp(repository);
  const [serve] = server.listeners("request") as [RequestListener];
  let fetchCount = 0;
  const holdBack = async (asked: IncomingMessage, answer: ServerResponse) => {
    const text = (await buffer(asked)).toString("latin1");
    if (text.includes("command=fetch")) fetchCount++;
    const body = text.replace("0014filter blob:none", "0011filter tree:0");
    const { headers, url, method } = asked;
    const changed = Object.assign(Readable.from([Buffer.from(body, "latin1")]), {
      headers,
      url,
      method,
    });
    serve(changed as unknown as IncomingMessage, answer);
  };
  server.removeAllListeners("request").on("request", (asked, answer) => {
    void holdBack(asked, answer);
  });
  const address = `http://127.0.0.1:${await listening(server)}/${basename(repository.path)}`;
  const evals = { name: "evals", kind: "git", access: "read", repository: address };
  await using service = await startTestService({
    config: { locations: [{ ...evals, username: "batchd", password: PASSWORD }] },
  });
  const answer = await fetch(`${service.url}/v1/files`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      purpose: "batch",
      x_batchd: { input: { location: "evals", path: "in/input.jsonl" } },
    }),
  });
  expect([answer.status, await answer.text(), fetchCount]).toEqual([
    503,
    expect.stringContaining("does not send all folders"),
    1,
  ]);
});

test.runIf(process.platform === "linux")(
  "results are pushed over http with a password that no process, log or answer shows",
  async () => {
    using repository = new TestRepository();
    repository.git("config", "http.receivepack", "true");
    const server = serveOverHttp(repository);
    const address = `http://127.0.0.1:${await listening(server)}/${basename(repository.path)}`;
    const remote = { repository: address, username: "batchd", password: PASSWORD };
    const { processes, shown } = await deliverOnce(repository, remote);
    // The push was under way.
    expect(processes).toContain("http-backend");
    for (const secret of [PASSWORD, Buffer.from(`batchd:${PASSWORD}`).toString("base64")]) {
      for (const text of [processes, shown]) expect(text).not.toContain(secret);
    }
  },
);

test.runIf(process.platform === "linux")(
  "results are pushed over ssh, with the key of the location and without settings of the user",
  async () => {
    using repository = new TestRepository();
    using folder = temporaryFolder("batchd-ssh-");
    const [bin, asked] = [join(folder.path, "bin"), join(folder.path, "asked")];
    mkdirSync(bin);
    // What sshd does with a command, without the encryption between: git speaks its own protocol with git-receive-pack.
    const ssh = `#!/bin/sh\necho "$@" >> '${asked}'\nfor command; do :; done\nexec sh -c "$command"\n`;
    writeFileSync(join(bin, "ssh"), ssh, { mode: 0o755 });
    process.env["PATH"] = `${bin}:${PATH}`;
    const key = join(folder.path, "key of batchd");
    writeFileSync(key, "not read by this ssh");
    const address = `ssh://git@evals.example${repository.path}`;
    await deliverOnce(repository, { repository: address, ssh_key_file: key });
    const commands = readFileSync(asked, "utf8").trimEnd().split("\n");
    expect(commands.at(-1)).toContain(`git-receive-pack '${repository.path}'`);
    for (const command of commands) {
      expect(command).toContain(`-i ${key} -o IdentitiesOnly=yes`);
      expect(command).toMatch(/^-F none -o BatchMode=yes .* git@evals\.example /);
    }
  },
);
