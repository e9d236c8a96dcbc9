/** The commands of docs/projects.md and docs/costs.md, pasted as they stand, and their configuration. */
import { expect, test } from "vitest";
import { parse } from "yaml";
import { parseConfig } from "../src/config/config.ts";
import { forAllTests } from "./support/for-all-tests.ts";
import { blocksOf, paste } from "./support/paste.ts";
import { COMMAND } from "./support/process.ts";
import { ask, create, post, upload } from "./support/projects.ts";
import { chatLine, startTestService } from "./support/service.ts";
import { startUpstream } from "./support/upstream.ts";

const ADMIN = "key-admin";
const EXAMPLE_KEY = /key_[0-9a-f]{32}/g;

const upstream = forAllTests(await startUpstream());

const configIn = (page: string) =>
  blocksOf(page, "yaml").map((block) => parse(block) as Record<string, unknown>);

const start = () =>
  startTestService({
    config: {
      upstreams: [{ name: "only", base_url: upstream.url, models: ["*"] }],
      auth: {
        keys: [
          { name: "a", key: "key-a", project: "team" },
          { name: "operator", key: ADMIN, scopes: ["admin"] },
        ],
      },
      prices: configIn("costs.md")[0]?.["prices"],
    },
  });

/** Pastes a block for a server. The command `batchd` comes from this checkout. */
async function pasteFor(
  { url, dataDir }: { readonly url: string; readonly dataDir: string },
  block: string,
  env: Readonly<Record<string, string>> = {},
) {
  const command = `batchd() { ${COMMAND} "$@" --data-dir "${dataDir}"; }`;
  const script = block.replaceAll("http://127.0.0.1:8080", url);
  return paste(`${command}\n${script}`, { env: { ADMIN_KEY: ADMIN, KEY: "key-a", ...env } });
}

test("the configuration of both guides is accepted", () => {
  for (const block of [...configIn("projects.md"), ...configIn("costs.md")]) {
    const parsed = parseConfig(block);
    expect(parsed.ok ? [] : parsed.problems).toEqual([]);
  }
});

test.each(blocksOf("projects.md", "bash").map((block) => [block]))(
  "docs/projects.md, block %# from 0",
  async (block) => {
    await using service = await start();
    const made = await post(service.url, "admin/keys", { name: "former" }, ADMIN);
    const { code, output } = await pasteFor(
      service,
      block.replaceAll(EXAMPLE_KEY, made.body.id ?? ""),
    );
    expect(output).not.toContain('"error"');
    expect({ code, output }).toMatchObject({ code: 0 });
  },
);

test("docs/costs.md: budgets, then usage", async () => {
  await using service = await start();
  const { url } = service;
  const [budgets = "", usage = ""] = blocksOf("costs.md", "bash");
  const line = chatLine("a", "Hello", { model: "llama-3-8b" });
  const file = (await upload(url, `${line}\n`)).body.id ?? "";
  upstream.hold();
  const batch = (await create(url, file)).body.id ?? "";
  await ask(url, `batches/${batch}/pause`, { method: "POST" });
  const budgeted = await pasteFor(service, budgets, { FILE: file, BATCH: batch });
  expect(budgeted.output).not.toContain('"error"');
  expect(budgeted.output).toContain('"budget":"5.00"');
  expect(budgeted.output).toContain('"budget":"7.50"');
  expect(budgeted.output.match(/"object":"batch"/g)).toHaveLength(3);
  upstream.release();
  await service.events.reached("batch.completed", { batch });
  const reported = await pasteFor(service, usage);
  expect(reported.output).not.toContain('"error"');
  expect(reported.output).toContain('"project","model","day"');
  expect([budgeted.code, reported.code]).toEqual([0, 0]);
});
