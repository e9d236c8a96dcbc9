/** A start that fails says why in one line, and leaves with 1. */
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdir, symlink, writeFile } from "node:fs/promises";
import { createServer as createHttpServer } from "node:http";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import Database from "better-sqlite3";
import { describe, expect, test, vi } from "vitest";
import { version } from "../../src/version.ts";
import { runCommand } from "../support/command.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { listening } from "../support/listening.ts";
import { BatchdProcess, SOURCES } from "../support/process.ts";
import { hasS3Server, startS3Server } from "../support/s3-server.ts";
import { temporaryFolder } from "../support/store-builders.ts";

const dir = forAllTests(temporaryFolder("batchd-startup-")).path;

async function failureOf(...args: readonly string[]): Promise<string> {
  const { code, stdout, stderr } = await runCommand(args);
  expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
  return stderr;
}

async function folder(name: string): Promise<string> {
  const path = join(dir, name);
  await mkdir(path, { recursive: true });
  return path;
}

async function file(name: string, contents: string | Uint8Array): Promise<string> {
  const path = join(dir, name);
  await writeFile(path, contents);
  return path;
}

describe("a data folder that cannot be used", () => {
  const serve = (dataDir: string) => failureOf("serve", "--port", "0", "--data-dir", dataDir);

  test("because it is a file", async () => {
    const path = await file("a-file", "");
    expect(await serve(path)).toBe(`batchd: the data folder ${path} is a file\n`);
  });

  test("because a folder on the way to it is a file", async () => {
    const path = join(await file("in-the-way", ""), "data");
    expect(await serve(path)).toMatch(/^batchd: cannot write to the data folder .*ENOTDIR.*\n$/);
  });

  test("because the database is damaged", async () => {
    const path = await folder("damaged");
    await file("damaged/batchd.sqlite", "this is no database, however long one reads");
    expect(await serve(path)).toBe(
      `batchd: the database ${join(path, "batchd.sqlite")} is damaged (file is not a database): stop the server and restore it from a backup, see docs/operating.md\n`,
    );
  });

  test("because the database is a folder", async () => {
    const path = await folder("odd");
    await folder("odd/batchd.sqlite");
    expect(await serve(path)).toMatch(/^batchd: cannot open the data in .*\n$/);
  });

  test("because a file is where the blobs should be", async () => {
    const path = await folder("no-blobs");
    await file("no-blobs/blobs", "");
    expect(await serve(path)).toMatch(/^batchd: cannot open the data in .*ENOTDIR.*\n$/);
    expect(await serve(path)).toContain(`'${join(path, "blobs")}'`);
  });

  test("because a newer version wrote the database", async () => {
    const path = await folder("newer");
    await runCommand(["migrate", "--data-dir", path]);
    const db = new Database(join(path, "batchd.sqlite"));
    db.exec("insert into __drizzle_migrations (hash, created_at) values ('later', 9999999999999)");
    db.close();
    expect(await serve(path)).toMatch(/^batchd: .* was written by a newer version of batchd.*\n$/);
  });
});

describe("a database address that a password ends too early is refused, and no part of the password is shown", () => {
  test.each([["p@Hidden1#2"], ["12#Hidden3"], ["12/Hidden3"], ["Hidden/3"]])(
    "%s",
    async (password) => {
      const url = `postgres://batchd:${password}@127.0.0.1:5/batchd`;
      const { code, stdout, stderr } = await runCommand(["check"], { BATCHD_DATABASE_URL: url });
      expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
      expect(stderr).toMatch(
        /^batchd: .* database_url: expected an address .* with %23 for # .*\n$/,
      );
      expect(stderr).not.toContain("Hidden");
    },
  );
});

describe("an address that cannot be listened on leaves no data folder behind", () => {
  test("a port that is taken", async () => {
    const other = createServer();
    const port = await listening(other);
    const data = join(dir, "taken");
    expect(await failureOf("serve", "--port", String(port), "--data-dir", data)).toBe(
      `batchd: port ${port} on 127.0.0.1 is already in use: stop what listens there, or choose another port with --port\n`,
    );
    expect(existsSync(data)).toBe(false);
  });

  test.each([
    ["300.1.1.1", "the host 300.1.1.1 is not known"],
    ["192.0.2.1", "192.0.2.1 is not an address of this machine"],
  ])("%s", async (host, problem) => {
    const data = join(dir, host);
    expect(await failureOf("serve", "--port", "0", "--host", host, "--data-dir", data)).toBe(
      `batchd: ${problem}\n`,
    );
    expect(existsSync(data)).toBe(false);
  });
});

describe("a configuration file that is none", () => {
  const NO_YAML = "is not a text file in UTF-8";
  test.each([
    ["a program", process.execPath, /is longer than \d+ bytes/],
    ["a file without end", "/dev/zero", /is longer than \d+ bytes/],
    ["a folder", tmpdir(), "EISDIR"],
    ["a file that is not there", "/nowhere/batchd.yaml", "ENOENT"],
    ["UTF-16", Buffer.from("\ufeffdata_dir: a", "utf16le"), NO_YAML],
    ["binary", Buffer.from([100, 0, 58, 32, 1]), NO_YAML],
    ["an alias within what it names", "engine: &a { drain_grace_seconds: *a }", "an alias refers"],
    ["aliases that multiply", bombOf(8), "Excessive alias count"],
  ])("%s", async (name, contents, problem) => {
    const isPath = typeof contents === "string" && contents.startsWith("/");
    const path = isPath ? contents : await file(`${name}.yaml`, contents);
    const said = await failureOf("check", "--config", path);
    expect(said.split("\n")[0]).toMatch(/^batchd: the configuration has /);
    expect(said).toMatch(problem);
    expect(said).not.toMatch(/\n {4}at /);
  });
});

/** Each level names the one below nine times. */
function bombOf(levels: number): string {
  const lines = Array.from({ length: levels }, (_, i) => {
    const below = i === 0 ? "x" : `*a${i - 1}`;
    return `a${i}: &a${i} [${Array(9).fill(below).join(", ")}]`;
  });
  return lines.join("\n");
}

test("a wrong key is named with the key that was meant, in one line", async () => {
  const path = await file("typo.yaml", "limts: { max_file_bytes: 1 }\n");
  expect(await failureOf("serve", "--config", path)).toBe(
    "batchd: the configuration has a problem: limts: unknown key, did you mean limits?\n",
  );
});

test("a start that goes well says in one line of the log what it starts", async () => {
  const path = await file(
    "good.yaml",
    'auth: { keys: [{ name: ci, key: sk-very-secret }] }\nupstreams: [{ name: gpu, base_url: "http://ann:pw@gpu:8000/v1", models: ["*"] }]\n',
  );
  const data = join(dir, "good");
  await using server = new BatchdProcess([
    "serve",
    "--port",
    "0",
    "--config",
    path,
    "--data-dir",
    data,
  ]);
  const url = await server.listening();
  const { stderr } = await server.kill("SIGTERM");
  const started = stderr.split("\n").filter((line) => line.includes('"server.started"'));
  expect(started.map((line) => JSON.parse(line) as unknown)).toMatchObject([
    { version, url, data_dir: data, upstreams: ["gpu http://gpu:8000"], keys: 1 },
  ]);
  expect(stderr).not.toMatch(/sk-very|ann:pw/);
});

test("a SIGHUP does not end a server that is still loading its code", async () => {
  const hook = `import { registerHooks } from "node:module";
    registerHooks({
      resolve(name, context, next) {
        if (name.endsWith("/cli.ts")) process.kill(process.pid, "SIGHUP");
        return next(name, context);
      },
    });`;
  const NODE_OPTIONS = `--import=data:text/javascript,${encodeURIComponent(hook)}`;
  const args = ["serve", "--port", "0", "--data-dir", join(dir, "hung-up")];
  await using server = new BatchdProcess(args, { NODE_OPTIONS }, SOURCES);
  await server.listening();
});

test("a start that waits for a silent bucket ends at SIGTERM, and the next one goes well", async () => {
  const silent = createServer();
  const endpoint = `http://127.0.0.1:${await listening(silent)}`;
  const connected = once(silent, "connection");
  const keys = { access_key_id: "id", secret_access_key: "secret" };
  const storage = { type: "s3", bucket: "b", region: "us-east-1", endpoint, ...keys };
  const config = await file("silent-bucket.yaml", JSON.stringify({ storage }));
  const args = ["serve", "--port", "0", "--data-dir", join(dir, "silent-bucket")];
  await using server = new BatchdProcess([...args, "--config", config]);
  await connected;
  const { code, stderr } = await server.kill("SIGTERM");
  expect(code, stderr).toBe(1);
  expect(stderr).toContain("server.cut_off");
  await using next = new BatchdProcess(args);
  await next.listening();
});

test("a start goes well, with a warning, while the folder of a location fails like the folder of a dead share", async () => {
  // Each name of the loop is there, and cannot be used.
  const path = join(dir, "loop");
  await symlink("loop", path);
  const locations = [{ name: "share", kind: "folder", path, access: "read" }];
  const config = await file("dead-share.yaml", JSON.stringify({ locations }));
  const data = join(dir, "beside-a-dead-share");
  const args = ["serve", "--port", "0", "--config", config, "--data-dir", data];
  await using server = new BatchdProcess(args);
  const url = await server.listening();
  await server.loggedLike(/warning: there is no folder .*\/loop for the location share/);
  expect((await fetch(`${url}/ready`)).status).toBe(200);
});

test.each([
  ["credentials", "region: r", "there are no credentials for the bucket"],
  ["a region", "access_key_id: id, secret_access_key: secret", "there is no region for the bucket"],
])("a bucket without %s is refused in plain words", async (_, keys, words) => {
  const config = await file("bucket.yaml", `storage: { type: s3, bucket: b, ${keys} }`);
  // Nothing of this machine may stand in for what the configuration lacks.
  const env = {
    AWS_ACCESS_KEY_ID: "",
    AWS_CONFIG_FILE: join(dir, "nowhere"),
    AWS_SHARED_CREDENTIALS_FILE: join(dir, "nowhere"),
    AWS_EC2_METADATA_DISABLED: "true",
  };
  // An empty region would count as one.
  vi.stubEnv("AWS_REGION", undefined);
  const args = ["serve", "--port", "0", "--config", config, "--data-dir", await folder("bucket")];
  const { code, stderr } = await runCommand(args, env);
  vi.unstubAllEnvs();
  expect(code).toBe(1);
  expect(stderr).toContain(
    `cannot use s3://b/batchd/: S3: ${words}, neither in the configuration nor in the usual places of AWS\n`,
  );
});

test.each([
  ["http", 404, "another server answers 404 in the place of the bucket: is its endpoint right?"],
  ["http", 503, "another server answers 503 in the place of the bucket"],
  ["https", 404, "the endpoint answers without TLS: is it http?"],
])(
  "an endpoint of the bucket that is another server is refused in plain words: %s, %i",
  async (scheme, status, words) => {
    const other = createHttpServer((_, response) => {
      response
        .writeHead(status, { "content-type": "application/json" })
        .end('{"error":"no such page"}');
    });
    const endpoint = `${scheme}://127.0.0.1:${await listening(other)}`;
    const keys = { access_key_id: "id", secret_access_key: "secret", force_path_style: true };
    const storage = { type: "s3", bucket: "b", region: "us-east-1", endpoint, ...keys };
    const config = await file(`${scheme}-${status}.yaml`, JSON.stringify({ storage }));
    const data = await folder(`${scheme}-${status}`);
    const { code, stderr } = await runCommand(
      ["serve", "--port", "0", "--config", config, "--data-dir", data],
      {},
    );
    expect(code).toBe(1);
    expect(stderr).toContain(`batchd: cannot use s3://b/batchd/: S3: ${words}\n`);
    expect(stderr).not.toContain("SDK");
  },
);

test.each([
  ["is something else", "", "HTTP/1.1 400 Bad Request", ": "],
  [
    "takes no TLS",
    "?sslmode=require",
    "N",
    ": The server does not support SSL connections, which `database.tls` or `sslmode` in database_url asks for\n",
  ],
])("a database that %s is refused with its address", async (kind, query, answer, words) => {
  const other = createServer((socket) => socket.on("error", () => {}).end(answer));
  const address = `127.0.0.1:${await listening(other)}`;
  const url = `postgres://someone:n0t-to-be-seen@${address}/batchd${query}`;
  const data = await folder(`database-${kind}`);
  const { code, stderr } = await runCommand(["serve", "--port", "0", "--data-dir", data], {
    BATCHD_DATABASE_URL: url,
  });
  expect(code).toBe(1);
  expect(stderr).toContain(`batchd: cannot open the database on PostgreSQL at ${address}${words}`);
  expect(stderr).not.toContain("n0t-to-be-seen");
});

test.runIf(hasS3Server())("an endpoint with the name of the bucket in it is named", async () => {
  await using server = await startS3Server();
  const { endpoint, bucket } = server.storage();
  const storage = server.storage({ endpoint: `${endpoint}/${bucket}` });
  const config = await file("bucket-twice.yaml", JSON.stringify({ storage }));
  const args = ["serve", "--port", "0", "--config", config, "--data-dir", await folder("twice")];
  const { code, stderr } = await runCommand(args, {});
  expect(code).toBe(1);
  expect(stderr).toContain(
    "the bucket is taken for an object: does its endpoint name the bucket, too?\n",
  );
});

test("a bucket whose session at AWS is over is refused with what renews the session", async () => {
  const config = await file("session.yaml", "storage: { type: s3, bucket: b, region: r }");
  const profile = await file(
    "profile",
    `[profile old]
sso_start_url = https://sso.example
sso_region = eu-west-1
sso_account_id = 1
sso_role_name = role
`,
  );
  const env = { AWS_PROFILE: "old", AWS_CONFIG_FILE: profile };
  const args = ["serve", "--port", "0", "--config", config, "--data-dir", await folder("session")];
  const { code, stderr } = await runCommand(args, env);
  expect(code).toBe(1);
  expect(stderr).toContain("To refresh this SSO session run aws sso login");
});
