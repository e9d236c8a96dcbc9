/** Lists whose later page has nothing any more: by HTTP, without a browser. */
import { expect, test } from "vitest";
import { chatLine, startTestService } from "../support/service.ts";

const upstreams = [{ name: "gpu", base_url: "http://127.0.0.1:9/v1", models: ["*"] }];

test("a later page without rows does not say that there are none at all", async () => {
  await using service = await startTestService({ config: { upstreams } });
  const pageOf = async (path: string) =>
    (await fetch(service.url + path, { headers: { accept: "text/html" } })).text();
  expect(await pageOf("/files")).toContain("No files yet");
  const id = await service.upload([chatLine("a", "Hello")]);
  const files = await pageOf(`/files?after=${id}`);
  expect(files).toContain("No older files");
  expect(files).not.toContain("No files yet");
  expect(files).toContain(">Newest</a>");

  const later = await pageOf("/upstreams?after=gpu");
  expect(later).toContain("No more upstreams");
  expect(later).not.toContain("Start the server with --upstream");
});
