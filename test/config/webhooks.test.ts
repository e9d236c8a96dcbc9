import { describe, expect, test } from "vitest";
import { A, load, problemsOf } from "../support/yaml-config.ts";

describe("webhooks", () => {
  const endpoint = (values: string) =>
    `webhooks: { endpoints: [{ name: a, url: "https://a.example/hook", secret: s, ${values} }] }`;

  test("an endpoint takes its secret from the environment, and may ask for some events of a project", () => {
    const yaml = endpoint("").replace(
      "secret: s,",
      `secret: "${A}", events: [batch.failed], project: p`,
    );
    expect(load(yaml, { A: "whsec_c2VjcmV0cw==" }).webhooks.endpoints).toEqual([
      {
        name: "a",
        url: "https://a.example/hook",
        secret: "whsec_c2VjcmV0cw==",
        events: ["batch.failed"],
        project: "p",
      },
    ]);
  });

  test.each([
    ["evnts: [batch.failed]", "evnts: unknown key"],
    ["events: []", "events: "],
    ["events: [batch.finalizing]", "events[0]: "],
    ["project: a b", "project: use letters"],
  ])("%s is refused", (values, problem) => {
    expect(problemsOf(endpoint(values))).toEqual([
      expect.stringContaining(`webhooks.endpoints[0].${problem}`) as string,
    ]);
  });

  test.each([
    "",
    "hook.example",
    "ftp://hook.example",
    "https://me:pw@hook.example",
    "https://me@x",
  ])("the address %j is refused", (url) => {
    expect(problemsOf(endpoint("").replace("https://a.example/hook", url))).toEqual([
      expect.stringMatching(/^webhooks\.endpoints\[0\]\.url: /) as string,
    ]);
  });

  test.each([
    "",
    " s3cr3t",
    "s3cr3t\n",
    "whsec_",
    "whsec_s3cr3t",
    "whsec_s3cr3t!=",
    "whsec_s3-r3_==",
  ])("the secret %j is refused, without being shown", (secret) => {
    const problems = problemsOf(endpoint("").replace("secret: s,", `secret: "${A}"`), {
      A: secret,
    });
    expect(problems.length).toBeGreaterThan(0);
    expect(problems.every((each) => each.startsWith("webhooks.endpoints[0].secret: "))).toBe(true);
    expect(problems.join()).not.toContain("s3");
  });

  test.each(["localhost", "hooks.internal", "10.0.0.7", "::1", "[fd00::7]"])(
    "the private host %s can be allowed",
    (host) => {
      const { webhooks } = load(`webhooks: { allow_private_hosts: ["${host}"] }`);
      expect(webhooks.allow_private_hosts).toEqual([host]);
    },
  );

  test.each([
    "",
    "http://localhost",
    "localhost:80",
    "10.0.0.0/8",
    "a b",
    "me@host",
    "[::1",
    "host?",
  ])("the private host %j is refused", (host) => {
    expect(problemsOf(`webhooks: { allow_private_hosts: ["${host}"] }`)).toEqual([
      expect.stringContaining("webhooks.allow_private_hosts[0]: expected a host name") as string,
    ]);
  });

  test("two endpoints of one name are refused", () => {
    const one = "{ name: a, url: http://a, secret: s }";
    expect(problemsOf(`webhooks: { endpoints: [${one}, ${one}] }`)).toEqual([
      'webhooks.endpoints: two of them are named "a"',
    ]);
  });
});
