import { describe, expect, test } from "vitest";
import { A, load, problemsOf } from "../support/yaml-config.ts";

describe("sizes and durations", () => {
  const limitOf = (size: string) => load(`limits: { max_upload_bytes: ${size} }`).limits;
  const graceOf = (time: string) => load(`engine: { drain_grace_seconds: ${time} }`).engine;

  test.each([
    ["200MB", 200_000_000],
    ["200MiB", 209_715_200],
    ["1.1GB", 1_100_000_000],
    ["2 gib", 2_147_483_648],
    ["512B", 512],
    ["64kb", 64_000],
    ["209715200", 209_715_200],
    ['"209715200"', 209_715_200],
  ])("%s is a size", (size, bytes) => expect(limitOf(size).max_upload_bytes).toBe(bytes));

  test.each([
    ["30s", 30],
    ["500ms", 0.5],
    ["2m", 120],
    ["0.5h", 1_800],
    ["45", 45],
    ["1.5", 1.5],
    ['"45"', 45],
  ])("%s is a duration", (time, seconds) =>
    expect(graceOf(time).drain_grace_seconds).toBe(seconds),
  );

  test("they may come from the environment", () => {
    const config = load(`limits: { max_file_bytes: "${A}" }`, { A: "1MB" });
    expect(config.limits.max_file_bytes).toBe(1_000_000);
  });

  test.each(["200M", "200 megs", "MB", "-1MB", "1e6", "1,5MB", "0.5B", "0", "9999999TB"])(
    "%s is refused as a size, with what is accepted",
    (size) => {
      expect(problemsOf(`limits: { max_upload_bytes: "${size}" }`)).toEqual([
        "limits.max_upload_bytes: expected from 1 to 9007199254740991 bytes: a plain number, or one with a unit, such as 200MB (decimal) or 200MiB (binary)",
      ]);
    },
  );

  test.each(["30sec", "-5s", "2h", "1:30"])("%s is refused as a duration", (time) => {
    expect(problemsOf(`engine: { drain_grace_seconds: "${time}" }`)).toEqual([
      "engine.drain_grace_seconds: expected at most an hour: a plain number of seconds, or one with a unit, such as 500ms, 30s, 10m, 2h or 1d",
    ]);
  });
});

test.each(["http://0.0.0.0", "0.0.0.0:8080", "[::1]", "not a host"])(
  "%s is refused as an address to listen on, before anything listens",
  (host) => {
    expect(problemsOf(`server: { host: "${host}" }`)).toEqual([
      "server.host: expected a host name or an address, without scheme, brackets and port",
    ]);
  },
);

test.each(["0.0.0.0", "::", "fe80::1%eth0", "localhost", "my_host.internal"])(
  "%s is an address to listen on",
  (host) => {
    expect(load(`server: { host: "${host}" }`).server.host).toBe(host);
  },
);
