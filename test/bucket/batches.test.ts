/** Batches of a server whose files, journals and results are in a bucket. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startS3Proxy } from "../support/s3-proxy.ts";
import { hasS3Server, type S3Server, startS3Server } from "../support/s3-server.ts";
import { chatLines, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

let server: S3Server;

describe.skipIf(!hasS3Server())("with a bucket", () => {
  beforeAll(async () => {
    server = await startS3Server();
  });
  afterAll(() => server[Symbol.asyncDispose]());

  test("results are merged from several segments that are read at a time, in the order of the input", async () => {
    await using upstream = await startUpstream();
    await using proxy = await startS3Proxy(server.url);
    const storage = server.storage({ prefix: "ahead/", endpoint: proxy.url });
    await using service = await startTestService({
      upstreamUrl: upstream.url,
      config: {
        storage,
        upstreams: [{ name: "u", base_url: upstream.url, models: ["*"], max_concurrency: 256 }],
      },
    });
    // Five chunks.
    const count = 2_500;
    proxy.trouble = { kind: "hold", method: "GET", path: /\/journal\// };
    const { id } = await service.submit(chatLines(count));
    // No read has its answer, so each was started without the result of another one.
    await expect.poll(() => proxy.held.length, { timeout: 60_000 }).toBeGreaterThanOrEqual(5);
    proxy.trouble = null;
    const batch = await service.ended(id);
    const rows = await service.rows(batch.output_file_id);
    expect(rows.map((row) => row.custom_id)).toEqual(
      Array.from({ length: count }, (_, i) => `line-${i + 1}`),
    );
  }, 120_000);
});
