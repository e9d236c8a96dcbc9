/** The thread of a conversion, which may end at any moment without harm to the server. */
import { spawnSync } from "node:child_process";
import { expect, test } from "vitest";

const FIXTURE = new URL("../support/fixtures/convert-without-descriptors.ts", import.meta.url);

test("a thread that cannot start fails its table alone, also while no rows have come yet", () => {
  const command = 'ulimit -n 80; exec "$0" "$1"';
  const { stdout, stderr } = spawnSync("sh", ["-c", command, process.execPath, FIXTURE.pathname]);
  expect([`${stdout}`, `${stderr}`]).toEqual(["ERR_WORKER_INIT_FAILED\n", ""]);
});
