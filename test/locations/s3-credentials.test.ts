import { writeFileSync } from "node:fs";
import { createServer, type IncomingHttpHeaders } from "node:http";
import { join } from "node:path";
import { afterEach, describe, expect, test, vi } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { parseConfig } from "../../src/config/config.ts";
import type { NamedLocation } from "../../src/locations/location.ts";
import { Locations } from "../../src/locations/locations.ts";
import { listening } from "../support/listening.ts";
import { aCall, aParcel } from "../support/parcels.ts";
import { temporaryFolder } from "../support/store-builders.ts";

afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllEnvs();
});

/** A server that refuses every request for an object, and keeps its headers. */
async function startRefusing(role: object = {}) {
  const seen: IncomingHttpHeaders[] = [];
  const server = createServer(({ url, headers }, answer) => {
    if (url !== "/role") seen.push(headers);
    answer.writeHead(url === "/role" ? 200 : 403, { "content-type": "application/json" });
    answer.end(JSON.stringify(role));
  });
  const url = `http://127.0.0.1:${await listening(server)}`;
  const stop = () => {
    server.close();
    server.closeAllConnections();
  };
  return { url, seen, [Symbol.dispose]: stop };
}

function lakeAt(endpoint: string): NamedLocation {
  const entry = { name: "lake", kind: "s3", bucket: "tests", access: "write", endpoint };
  const parsed = parseConfig({ locations: [{ ...entry, region: "us-east-1" }] });
  const deps = { clock: systemClock, workFolder: "/nonexistent", environment: {} };
  const configured = parsed.ok ? parsed.config.locations : [];
  const lake = new Locations(configured, deps).find("default", "lake", "write");
  if (lake === null) throw new Error("there is no lake");
  return lake;
}

const expectRefusal = (lake: NamedLocation) =>
  expect(lake.deliver(aParcel(), aCall())).rejects.toMatchObject({ failure: "forbidden" });

describe("a bucket without a key in the configuration", () => {
  test("gets the role of the machine", async () => {
    const keys = { AccessKeyId: "role-key", SecretAccessKey: "x", Token: "role-token" };
    using machine = await startRefusing({ ...keys, Expiration: "2099-01-01T00:00:00Z" });
    vi.stubEnv("AWS_CONTAINER_CREDENTIALS_FULL_URI", `${machine.url}/role`);
    await expectRefusal(lakeAt(machine.url));
    expect(machine.seen[0]).toMatchObject({
      authorization: expect.stringContaining("Credential=role-key/"),
      "x-amz-security-token": "role-token",
    });
  });

  test("gets the keys that its profile has by now, and the last ones while the file is half written", async () => {
    using folder = temporaryFolder("batchd-profile-");
    using machine = await startRefusing();
    const profile = join(folder.path, "credentials");
    const write = (key: string) =>
      writeFileSync(profile, `[default]\naws_access_key_id=${key}\naws_secret_access_key=x\n`);
    vi.stubEnv("AWS_ACCESS_KEY_ID", undefined);
    vi.stubEnv("AWS_PROFILE", undefined);
    vi.stubEnv("AWS_EC2_METADATA_DISABLED", "true");
    vi.stubEnv("AWS_SHARED_CREDENTIALS_FILE", profile);
    const { now } = Date;
    let passedMs = 0;
    vi.spyOn(Date, "now").mockImplementation(() => now() + passedMs);
    const lake = lakeAt(machine.url);
    const keyAfter = async (ms: number) => {
      passedMs += ms;
      await expectRefusal(lake);
      return /=(.+)-key\//.exec(machine.seen.at(-1)?.authorization ?? "")?.[1];
    };
    write("first-key");
    expect(await keyAfter(0)).toBe("first");
    write("second-key");
    expect(await keyAfter(6 * 60_000)).toBe("second");
    writeFileSync(profile, "[default]\naws_access_key_id=th");
    expect(await keyAfter(6 * 60_000)).toBe("second");
    write("third-key");
    expect(await keyAfter(6 * 60_000)).toBe("third");
  });
});
