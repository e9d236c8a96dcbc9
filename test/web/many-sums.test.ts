/** The page of usage while there are more sums than a report has. */
import { join } from "node:path";
import Database from "better-sqlite3";
import { expect, test } from "vitest";
import { submitLines } from "../support/batches.ts";
import { ask, clientOf } from "../support/projects.ts";
import { chatLine, startTestService } from "../support/service.ts";
import { signIn } from "../support/sign-in.ts";
import { startUpstream } from "../support/upstream.ts";

/** A project has so many models of its own in a report, which has 10,000 sums at most. */
const MODELS = 100;
const PROJECTS = 101;

/** Another hundred projects have used what one has. */
const USED_BY_OTHERS = `
  with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < ${PROJECTS - 1})
  insert into model_usage (batch_id, project, model, day, price, request_count, input_tokens, cached_tokens, output_tokens)
  select batch_id || n, 'tenant-' || n, model, day, price, request_count, input_tokens, cached_tokens, output_tokens
  from model_usage, numbers`;

test("the page of usage keeps its form, its sums and its chart when there are too many rows to show", async () => {
  await using upstream = await startUpstream();
  const keys = [
    { name: "client", key: "key-client", project: "tenant-0" },
    { name: "operator", key: "key-admin", scopes: ["admin", "read"] },
  ];
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    config: { auth: { keys }, limits: { allow_mixed_models: true } },
  });
  const lines = Array.from({ length: MODELS }, (_, n) =>
    chatLine(`line-${n}`, "Hi", { model: `model-${n}` }),
  );
  const { id: batch } = await submitLines(clientOf(service.url, "key-client"), lines);
  await service.events.reached("batch.completed", { batch });
  new Database(join(service.dataDir, "batchd.sqlite")).exec(USED_BY_OTHERS).close();
  const asked = await ask(service.url, "usage?group_by=project,model", {}, "key-admin");
  expect(asked.status).toBe(400);

  const headers = { cookie: await signIn(service.url, "key-admin"), accept: "text/html" };
  const page = await fetch(`${service.url}/usage?by=project&by=model`, { headers });
  expect(page.status).toBe(200);
  const text = await page.text();
  expect(text).toContain(asked.body.error?.message.replaceAll("'", "&#39;"));
  expect(text).toMatch(/<dt>Lines<\/dt><dd>10,100<\/dd>/);
  expect(text).toContain("Tokens by day");
  expect(text).toContain('<input type="checkbox" name="by" value="project" checked>');
});
