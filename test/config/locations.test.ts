import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { stringify } from "yaml";
import { systemClock } from "../../src/clock.ts";
import { loadConfig, parseConfig, programEnvironment } from "../../src/config/config.ts";
import { redactConfig } from "../../src/config/redact-config.ts";
import { configSecrets } from "../../src/config/secrets.ts";
import { lookAtFolders } from "../../src/runtime/location-folders.ts";
import { configWith, problemsWith } from "../support/yaml-config.ts";

const FOLDER = { name: "share", kind: "folder", path: "/mnt/share", access: "read-write" };

const problemsOf = (locations: readonly object[], more: object = {}) =>
  problemsWith({ locations, ...more });

test("a location needs its name, kind, access and place", () => {
  expect(problemsOf([FOLDER])).toEqual([]);
  expect(problemsOf([{ ...FOLDER, projects: ["search"] }])).toEqual([]);
  expect(problemsOf([{ kind: "folder" }])).toEqual([
    "locations[0].name: required",
    "locations[0].access: required, one of read, write, read-write",
    "locations[0].path: required",
  ]);
});

test.each([
  [{ ...FOLDER, kind: "ftp" }, "locations[0].kind: expected folder, s3, git or oxen"],
  [{ ...FOLDER, pth: "/a" }, "locations[0].pth: unknown key, did you mean path?"],
  [{ ...FOLDER, access: "rw" }, "locations[0].access: "],
  [{ ...FOLDER, projects: [] }, "locations[0].projects: "],
  [{ ...FOLDER, name: "a/b" }, "locations[0].name: use letters"],
])("%j is refused with the reason", (location, problem) => {
  expect(problemsOf([location])).toEqual([expect.stringContaining(problem)]);
});

const S3 = { name: "lake", kind: "s3", bucket: "b", access: "write" };
const KEY = { access_key_id: "AKIAEXAMPLE", secret_access_key: "example-secret-4711" };

test.each([
  [{ ...S3, bucket: undefined }, "locations[0].bucket: required"],
  [{ ...S3, path: "/a" }, "locations[0].path: unknown key for this kind"],
  [{ ...S3, prefix: "/a/" }, "locations[0].prefix: expected a path"],
  [{ ...S3, prefix: "a/../b/" }, "locations[0].prefix: expected a path"],
  [{ ...S3, endpoint: "http://u:p@h" }, "locations[0].endpoint: leave user name and password out"],
  [{ ...S3, access_key_id: "a" }, "locations[0]: access_key_id and secret_access_key go together"],
  [{ ...S3, session_token: "t" }, "locations[0].session_token: only with access_key_id"],
  [{ ...S3, kms_key_id: "k" }, "locations[0].kms_key_id: only with server_side_encryption"],
])("%j is refused with the reason", (location, problem) => {
  expect(problemsOf([location])).toEqual([expect.stringContaining(problem)]);
});

const GIT = { name: "evals", kind: "git", repository: "https://host/evals.git", access: "write" };

test.each([
  "/srv/git/evals.git",
  "evals.git",
  "../a b/evals.git",
  "file:///srv/git/evals.git",
  "ssh://git@host:22/evals.git",
  "git@host:team/evals.git",
  "http://host/evals.git",
])("%s is a repository", (repository) => {
  expect(problemsOf([{ ...GIT, repository }])).toEqual([]);
});

test.each([
  "ext::sh -c id",
  "-u./x",
  "--upload-pack=id",
  "ssh://-oProxyCommand=id/x",
  "a\nb",
  "host:x",
  "fd::17",
  "git@-oProxyCommand=id:x",
  "https://",
  "javascript:1",
])("%j is no repository", (repository) => {
  expect(problemsOf([{ ...GIT, repository }])).not.toEqual([]);
});

test.each<readonly [location: object, problem: string]>([
  [{ ...GIT, repository: "https://u:p@host/x" }, "locations[0].repository: leave the password out"],
  [{ ...GIT, repository: "https://token@host/x" }, "locations[0].repository: leave the password"],
  [{ ...GIT, username: "u" }, "locations[0]: username and password go together"],
  [
    { ...GIT, repository: "/srv/x", username: "u", password: "p-12345678" },
    "locations[0].password: only with https and http",
  ],
  ...["-x", "a..b", "a//b", "a/", "a.lock", "a b", "a~1", "refs/../x", "@{-1}", ".a", "a/.b"].map(
    (base) => [{ ...GIT, base }, "locations[0].base: expected the name of a branch"] as const,
  ),
  [{ ...GIT, author_name: "a <b>" }, "locations[0].author_name"],
  [{ ...GIT, repository: "/srv/data/x.git" }, "locations[0].repository: the data_dir"],
])("%j is refused with the reason", (location, problem) => {
  const data_dir = "/srv/data";
  expect(problemsOf([location], { data_dir })).toEqual([expect.stringContaining(problem)]);
});

test("a git location needs the program, and what starts has only the variables it needs", () => {
  const folder = mkdtempSync(join(tmpdir(), "batchd-locations-"));
  const path = join(folder, "batchd.yaml");
  writeFileSync(path, stringify({ locations: [GIT] }));
  expect(loadConfig({ config: path }, { PATH: "/nonexistent" })).toMatchObject({
    problems: ["locations[0]: kind git needs the program git, which is not in the PATH"],
  });
  const env = { PATH: process.env["PATH"], SECRET: "x", SSH_AUTH_SOCK: "/run/agent" };
  expect(loadConfig({ config: path }, env).ok).toBe(true);
  expect(programEnvironment(env)).toEqual({ PATH: env.PATH, SSH_AUTH_SOCK: "/run/agent" });
  rmSync(folder, { recursive: true });
});

const OXEN = {
  name: "data",
  kind: "oxen",
  url: "http://oxen:3000",
  repository: "ns/a",
  access: "read",
};

test.each<readonly [location: object, problem: string]>([
  [{ ...OXEN, url: "http://u:p@oxen" }, "locations[0].url: leave user name and password out"],
  [{ ...OXEN, repository: "ns" }, "locations[0].repository: expected namespace/name"],
  [{ ...OXEN, repository: "../x" }, "locations[0].repository: expected namespace/name"],
])("%j is refused with the reason", (location, problem) => {
  expect(problemsOf([location])).toEqual([expect.stringContaining(problem)]);
});

test("credentials of locations are secrets: they are not printed, and the log does not show them", () => {
  const lake = { ...S3, ...KEY, session_token: "example-token-1623" };
  const git = { ...GIT, username: "u", password: "example-pass-4711" };
  const config = configWith({ locations: [lake, git, { ...OXEN, token: "example-token-0815" }] });
  const secrets = [
    "example-secret-4711",
    "example-token-1623",
    "example-pass-4711",
    Buffer.from("u:example-pass-4711").toString("base64"),
    "example-token-0815",
  ];
  expect(configSecrets(config)).toEqual(secrets);
  const printed = redactConfig(config);
  for (const secret of secrets) expect(printed).not.toContain(secret);
  expect(JSON.parse(printed).locations[0]).toMatchObject({
    bucket: "b",
    access_key_id: "AKIAEXAMPLE",
  });
});

const lookedAt = (path: string, more: object = {}) =>
  lookAtFolders(parseConfig({ locations: [{ ...FOLDER, path }], ...more }), systemClock);

test("a folder that is not there is a warning: its share may be mounted later", async () => {
  const warningsOf = async (path: string) => (await lookedAt(path)).warnings;
  expect(await warningsOf("/nonexistent/share")).toEqual([
    "there is no folder /nonexistent/share for the location share: is a share not mounted?",
  ]);
  expect(await warningsOf("/etc")).toEqual([]);
});

test("two locations cannot have one name", () => {
  const two = [FOLDER, { ...FOLDER, path: "/mnt/other" }];
  expect(problemsOf(two)).toEqual(['locations: two of them are named "share"']);
});

test("a location never contains the data folder, nor lies in it, also over a link", async () => {
  const root = mkdtempSync(join(tmpdir(), "batchd-locations-"));
  const link = join(root, "link");
  symlinkSync(root, link);
  const nested = [expect.stringContaining("locations[0].path: the data_dir")];
  for (const [path, data_dir] of [
    ["/srv/data", "/srv/data"],
    ["/srv", "/srv/data"],
    ["/srv/data/blobs", "/srv/data"],
    ["/", "/srv/data"],
    ["./data", "./data/"],
  ] as const) {
    expect(problemsOf([{ ...FOLDER, path }], { data_dir }), path).toEqual(nested);
  }
  expect(problemsOf([{ ...FOLDER, path: "/srv/data2" }], { data_dir: "/srv/data" })).toEqual([]);
  for (const place of ["/srv/a%20b/evals.git", "/srv/%61%20b"]) {
    const repository = `file://${place}`;
    expect(problemsOf([{ ...GIT, repository }], { data_dir: "/srv/a b" }), place).toEqual([
      expect.stringContaining("locations[0].repository: the data_dir"),
    ]);
  }
  expect((await lookedAt(link, { data_dir: root })).loaded).toMatchObject({ problems: nested });
  rmSync(root, { recursive: true });
});

test("a location in a bucket never contains the storage, nor lies in it", () => {
  const storage = { type: "s3", bucket: "b", region: "eu-central-1" };
  const minio = { endpoint: "http://minio:9000" };
  const aws = { endpoint: "https://s3.eu-central-1.amazonaws.com" };
  const nested = [expect.stringContaining("locations[0].prefix: the storage and a location")];
  for (const [location, more] of [
    [{}, {}],
    [{ prefix: "batchd/" }, {}],
    [{ prefix: "batchd/results/" }, {}],
    [{ prefix: "a/" }, { prefix: "a/b/" }],
    [{ prefix: "results/" }, { prefix: "" }],
    [aws, {}],
    [minio, { endpoint: "http://MINIO:9000/" }],
  ]) {
    const label = JSON.stringify([location, more]);
    expect(
      problemsOf([{ ...S3, ...location }], { storage: { ...storage, ...more } }),
      label,
    ).toEqual(nested);
  }
  for (const location of [{ prefix: "results/" }, { prefix: "batchd2/" }, { bucket: "c" }, minio]) {
    expect(problemsOf([{ ...S3, ...location }], { storage })).toEqual([]);
  }
  expect(problemsOf([S3], { storage: { type: "folder" } })).toEqual([]);
});
