/** A bucket whose copies are behind says that what was stored is missing. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { startS3Proxy } from "../../support/s3-proxy.ts";
import { hasS3Server, type S3Server, startS3Server } from "../../support/s3-server.ts";
import { chatLines, startTestService } from "../../support/service.ts";
import { startUpstream } from "../../support/upstream.ts";

let server: S3Server;

describe.skipIf(!hasS3Server())("with a bucket", () => {
  beforeAll(async () => {
    server = await startS3Server();
  });
  afterAll(() => server[Symbol.asyncDispose]());

  test.each([
    ["its input", /\/files\//, "complete"],
    ["its journal", /\/journal\//, "complete"],
    ["its input at the end", /\/files\//, "cancel"],
    ["its journal at the end", /\/journal\//, "cancel"],
  ] as const)(
    "a bucket that says twice that %s is missing costs a batch no line and no answer",
    async (name, path, end) => {
      await using upstream = await startUpstream();
      await using proxy = await startS3Proxy(server.url);
      const storage = server.storage({
        prefix: `${name.replaceAll(" ", "-")}/`,
        endpoint: proxy.url,
      });
      await using service = await startTestService({
        upstreamUrl: upstream.url,
        config: { storage, engine: { lease_seconds: 3, stop_grace_seconds: 0 } },
      });
      const behind = { kind: "behind", path, times: 2 } as const;
      if (end === "complete") proxy.trouble = behind;
      const isLeft = (n: number) => end === "cancel" && n > 10;
      const { id } = await service.submit(chatLines(20, (n) => (isLeft(n) ? "[[hang]]" : "fine")));
      if (end === "cancel") {
        await service.events.reached("journal.flushed", { batch: id });
        proxy.trouble = behind;
        await service.openai.batches.cancel(id);
      }
      await service.events.reached("loop.pass_failed", { count: 2 });
      const batch = await service.ended(id);
      const output = await service.rows(batch.output_file_id);
      const errors = batch.error_file_id === null ? [] : await service.rows(batch.error_file_id);
      const left = Array.from({ length: 20 }, (_, i) => i + 1).filter(isLeft);
      expect(output).toHaveLength(20 - left.length);
      expect(errors.map((row) => row.custom_id)).toEqual(left.map((n) => `line-${n}`));
      expect(new Set(upstream.received.values())).toEqual(new Set([1]));
    },
  );
});
