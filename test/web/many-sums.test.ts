/** Pages while there is more than they show: sums of usage, projects, upstreams. */
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

/** A page of upstreams has 50. */
const UPSTREAMS = 60;

/** Another hundred projects have used what one has. */
const USED_BY_OTHERS = `
  with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < ${PROJECTS - 1})
  insert into model_usage (batch_id, project, model, day, price, request_count, input_tokens, cached_tokens, output_tokens)
  select batch_id || n, 'tenant-' || n, model, day, price, request_count, input_tokens, cached_tokens, output_tokens
  from model_usage, numbers`;

const MANY_MORE_PROJECTS = `
  with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < 10000)
  insert into model_usage (batch_id, project, model, day, price, request_count, input_tokens, cached_tokens, output_tokens)
  select batch_id || 'more' || n, 'more-' || n, model, day, price, request_count, input_tokens, cached_tokens, output_tokens
  from (select * from model_usage where project = 'tenant-0' limit 1), numbers`;

test("each page keeps its form, and says how it goes on, when there is too much to show", async () => {
  await using upstream = await startUpstream();
  const keys = [
    { name: "client", key: "key-client", project: "tenant-0" },
    { name: "operator", key: "key-admin", scopes: ["admin", "read"] },
  ];
  const upstreams = Array.from({ length: UPSTREAMS }, (_, n) => ({
    name: `up-${n + 10}`,
    base_url: upstream.url,
    models: n === 0 ? ["*"] : [`other-${n}`],
  }));
  await using service = await startTestService({
    config: { auth: { keys }, upstreams, limits: { allow_mixed_models: true } },
  });
  const lines = Array.from({ length: MODELS }, (_, n) =>
    chatLine(`line-${n}`, "Hi", { model: `model-${n}` }),
  );
  const { id: batch } = await submitLines(clientOf(service.url, "key-client"), lines);
  await service.events.reached("batch.completed", { batch });
  const database = new Database(join(service.dataDir, "batchd.sqlite")).exec(USED_BY_OTHERS);
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

  // The page of keys says that there are too many projects, in place of none, and sums them up once.
  database.exec(MANY_MORE_PROJECTS).close();
  const keysPage = await (await fetch(`${service.url}/keys`, { headers })).text();
  const [, projects] = keysPage.split('<section id="projects"');
  expect(projects).toContain("There are more than 10000 sums.");
  const live = { ...headers, "sec-fetch-site": "same-origin" };
  const events = await fetch(`${service.url}/web/live/keys`, { headers: live });
  const parts = await firstParts(events.body!);
  expect(Object.keys(parts)).toEqual(["heading", "keys"]);

  const names = (html: string) => html.match(/(?<=<th scope="row"><bdi>)up-\d+/g);
  const firstPage = await (await fetch(`${service.url}/upstreams`, { headers })).text();
  expect(names(firstPage)).toHaveLength(50);
  const [, next = ""] = /href="([^"]+)" rel="next"/.exec(firstPage) ?? [];
  const nextPage = await fetch(new URL(next, `${service.url}/upstreams`), { headers });
  expect(names(await nextPage.text())).toEqual(upstreams.slice(50).map(({ name }) => name));
});

/** Resolves to the elements that a page is first sent, by their id. */
async function firstParts(body: AsyncIterable<Uint8Array>): Promise<Record<string, string>> {
  let text = "";
  for await (const piece of body) {
    text += Buffer.from(piece).toString();
    const found = /event: parts\ndata: (.*)\n\n/.exec(text)?.[1];
    if (found !== undefined) return JSON.parse(found) as Record<string, string>;
  }
  throw new Error("the events have ended");
}
