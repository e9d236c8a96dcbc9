/** What the list of batches and their own pages call them: by HTTP, without a browser. */
import { expect, test } from "vitest";
import { submitLines } from "../support/batches.ts";
import { derive } from "../support/derived.ts";
import { chatLine, startTestService, type TestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const listOn = async ({ url }: TestService): Promise<string> => {
  const answer = await fetch(`${url}/`, { headers: { accept: "text/html" } });
  return answer.text();
};

test("the list shows the name of an input that is made later than its batch", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  upstream.hold();
  const source = await service.submit([chatLine("a", "Hello")]);
  await upstream.reached(1);
  const { batch } = await derive(service, { batch: source.id, lines: "all" });
  const list = () => listOn(service);
  const name = `${source.id}_all.jsonl`;
  const before = await list();
  expect(before).toContain(batch.id);
  expect(before).not.toContain(name);
  upstream.release();
  await service.ended(batch.id);
  expect(await list()).toContain(name);
});

test("a name that is too long for the list ends between two characters", async () => {
  await using service = await startTestService({});
  const metadata = { name: `a${"🌙".repeat(40)}` };
  await submitLines(service.openai, [chatLine("a", "Hello")], { metadata });
  const list = await fetch(`${service.url}/`, { headers: { accept: "text/html" } });
  expect(await list.text()).toContain(`<bdi>a${"🌙".repeat(29)}…</bdi>`);
});

test("the list calls a batch by the name in its metadata, else by their first value", async () => {
  await using service = await startTestService({});
  const input_file_id = await service.upload([chatLine("a", "Hello")]);
  const asked = {
    input_file_id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  } as const;
  const all = [
    { team: "red", name: "nightly" },
    { empty: "", team: "blue", tier: "gold" },
    { name: " ", team: "green" },
  ];
  for (const metadata of all) await service.openai.batches.create({ ...asked, metadata });
  const list = await listOn(service);
  const values = ["red", "nightly", "blue", "gold", "green"];
  const shown = values.filter((each) => list.includes(`<bdi>${each}<`));
  expect(shown).toEqual(["nightly", "blue", "green"]);
});

test("the page and the tab of a batch have the name in its metadata, else the name of its input, else its id", async () => {
  await using service = await startTestService({});
  const pageOf = async (id: string) => {
    const answer = await fetch(`${service.url}/batches/${id}`, {
      headers: { accept: "text/html" },
    });
    const page = await answer.text();
    return { title: /<title>(.*?) · batchd</.exec(page)?.[1], page };
  };
  const metadata = { name: "night\u202ely </title>" };
  const lines = [chatLine("a", "Hello")];
  const { id: named } = await submitLines(service.openai, lines, { metadata });
  const { title, page } = await pageOf(named);
  expect(title).toBe("night⟨U+202E⟩ly &lt;/title&gt;");
  expect(page).toContain(`<bdi>${title}</bdi> · <bdi>input.jsonl</bdi>`);

  const { id, input_file_id } = await service.submit(lines);
  expect((await pageOf(id)).title).toBe("input.jsonl");
  await service.ended(id);
  await service.openai.files.delete(input_file_id);
  expect((await pageOf(id)).title).toBe(id);
});

test("a list that is opened does not show the name of an input that was deleted", async () => {
  await using upstream = await startUpstream();
  await using service = await startTestService({ upstreamUrl: upstream.url });
  const { id, input_file_id } = await service.run([chatLine("a", "Hello")]);
  expect(await listOn(service)).toContain("input.jsonl");
  await service.openai.files.delete(input_file_id);
  const after = await listOn(service);
  expect(after).toContain(id);
  expect(after).not.toContain("input.jsonl");
});
