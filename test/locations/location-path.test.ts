import { expect, test } from "vitest";
import { parseLocationPath } from "../../src/locations/location-path.ts";

test.each([
  ["a.jsonl"],
  ["2026/11/run 7/größe-日本.jsonl.gz"],
  ["a:b/c#d?e%2f&f=g+h@i~j"],
  ["a..b/c..d"],
  ["a".repeat(255)],
])("%s is a path", (text) => {
  expect(parseLocationPath(text)).toEqual({ ok: true, path: text });
});

test.each([
  ["", "is empty"],
  ["/etc/passwd", "begins with '/'"],
  ["..", "begins with a dot"],
  ["../a", "begins with a dot"],
  ["a/../../b", "begins with a dot"],
  ["a/./b", "begins with a dot"],
  [".git/config", "begins with a dot"],
  ["a/.ssh/id", "begins with a dot"],
  ["a//b", "an empty part"],
  ["a/", "an empty part"],
  ["a\\..\\b", "a backslash"],
  ["C:\\a", "a backslash"],
  ["a\0b", "not visible"],
  ["a\nb", "not visible"],
  ["a\u202eb", "not visible"],
  ["a\u200b/b", "not visible"],
  ["a\ud800", "not visible"],
  ["a\u2028b", "not visible"],
  ["a./b", "a space or dot at its end"],
  ["a/b ", "a space or dot at its end"],
  [" a", "begins with a space"],
  ["a".repeat(256), "longer than 255 bytes"],
  ["ü".repeat(128), "longer than 255 bytes"],
  [Array.from({ length: 600 }, () => "a").join("/"), "longer than 1024 bytes"],
])("%j is not a path", (text, problem) => {
  expect(parseLocationPath(text)).toEqual({ ok: false, problem: expect.stringContaining(problem) });
});
