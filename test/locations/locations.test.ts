import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buffer } from "node:stream/consumers";
import { afterAll, expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { parseConfig } from "../../src/config/config.ts";
import { Locations } from "../../src/locations/locations.ts";
import { aCall, aParcel, pathOf } from "../support/parcels.ts";

const DEPS = { clock: systemClock, workFolder: tmpdir(), environment: {} };

const roots: string[] = [];
function newRoot(): string {
  const root = mkdtempSync(join(tmpdir(), "batchd-locations-"));
  roots.push(root);
  return root;
}
afterAll(() => {
  for (const root of roots) rmSync(root, { recursive: true, force: true });
});

function configured(locations: readonly object[]) {
  const parsed = parseConfig({ locations });
  if (!parsed.ok) throw new Error(parsed.problems.join("\n"));
  return parsed.config.locations;
}

const folder = (name: string, more: object = {}) => ({
  ...{ name, kind: "folder", path: newRoot(), access: "read-write", ...more },
});

test("a project finds the locations that are open to it, for what they are open to", () => {
  const locations = new Locations(
    configured([
      folder("in", { access: "read" }),
      folder("out", { access: "write" }),
      folder("both", { projects: ["search"] }),
    ]),
    DEPS,
  );
  const found = (project: string, name: string) =>
    (["read", "write"] as const).filter((access) => locations.find(project, name, access) !== null);
  expect(found("search", "in")).toEqual(["read"]);
  expect(found("search", "out")).toEqual(["write"]);
  expect(found("search", "both")).toEqual(["read", "write"]);
  expect(found("other", "both")).toEqual([]);
  expect(found("search", "none")).toEqual([]);
  expect(found("search", "__proto__")).toEqual([]);
});

test("a location reads and delivers with the settings in force, and is the same while they are", async () => {
  const before = folder("share");
  const locations = new Locations(configured([before, folder("other")]), DEPS);
  const former = locations.find("default", "share", "write");
  const after = { ...before, path: newRoot() };
  locations.reconfigure(configured([after]));
  expect(locations.find("default", "other", "write")).toBeNull();
  const current = locations.find("default", "share", "write");
  expect(current).not.toBe(former);
  locations.reconfigure(configured([after]));
  expect(locations.find("default", "share", "write")).toBe(current);
  const parcel = aParcel();
  await former?.deliver(parcel, aCall());
  await current?.deliver(parcel, aCall());
  expect(readdirSync(before.path)).toEqual([parcel.batchId]);
  expect(readdirSync(after.path)).toEqual([parcel.batchId]);
  writeFileSync(join(after.path, "in"), "lines");
  await using file = await current!.open(pathOf("in"), aCall());
  expect((await buffer(file.content)).toString()).toBe("lines");
});
