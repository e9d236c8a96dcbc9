/** Texts of clients, models and upstreams on every page and in its events: they stay text, wherever they come from. */
import { expect, test, vi } from "vitest";
import { createBatch } from "../support/batches.ts";
import { hasChromium, openChromium } from "../support/browser.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { refusal } from "../support/given.ts";
import { chatLine, startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

const HOSTILE = `"'><script>window.hacked=1</script><img src=x onerror=hacked()>\u202e\u001b[2J\u2066\u0085\u200b`;
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are the characters to find.
const RAW = /<script>window|<img src=x|"'>|[\u202e\u001b\u2066\u0085\u200b]/;

const upstream = forAllTests(
  await startUpstream({
    answers: () => refusal(401, { code: HOSTILE, message: HOSTILE, type: HOSTILE }),
  }),
);
const upstreams = [{ name: "hostile", base_url: upstream.url, models: ["*"] }];
const service = forAllTests(await startTestService({ config: { upstreams } }));
const open = (path: string) =>
  fetch(service.url + path, {
    headers: { accept: "text/html", "sec-fetch-site": "same-origin" },
  });

const line = chatLine(HOSTILE, HOSTILE, { model: HOSTILE });
const file = new File([`${line}\n`], `${HOSTILE}.jsonl`);
const fileId = (await service.openai.files.create({ file, purpose: "batch" })).id;
const metadata = { [HOSTILE.slice(0, 64)]: HOSTILE };
const { id: batchId } = await createBatch(service.openai, fileId, { metadata });
/** Any text that begins so may be the id of an input. It is not looked up before the batch is there. */
const FILE_ID = "file-/../../../../docs?\u202e\u2066\u200b\"'><script>window";
const { id: otherId } = await createBatch(service.openai, FILE_ID);
// The upstream refuses the key, and the batch waits.
await vi.waitFor(
  async () =>
    expect(await (await open("/v1/admin/upstreams")).text()).toContain("refused_credentials"),
  { timeout: 100_000 },
);

/** The pages, and what a link of another site could write into their addresses. */
function paths(): string[] {
  const query = encodeURIComponent(HOSTILE);
  return [
    "/",
    `/batches/${batchId}`,
    `/batches/${otherId}`,
    "/files",
    `/new?file=${fileId}`,
    "/upstreams",
    "/usage",
    "/keys",
    `/batches/${query}`,
    `/files?after=${query}`,
    `/usage?days=${query}`,
    `/?search=${query}&status=${query}&model=${query}&metadata=${query}&after=${query}`,
    `/new?file=${query}`,
  ];
}

test("no page has them as anything but text", async () => {
  for (const path of paths()) {
    const answer = await open(path);
    const text = await answer.text();
    expect([path, answer.headers.get("content-type")]).toEqual([path, "text/html; charset=utf-8"]);
    expect([path, RAW.exec(text)?.[0]]).toEqual([path, undefined]);
  }
  const page = await (await open(`/batches/${batchId}`)).text();
  expect(page).toContain("&lt;script&gt;window.hacked=1&lt;/script&gt;");
  expect(page).toContain("⟨U+202E⟩␛[2J");
});

test("the id of an input leads to no address but the one of a file", async () => {
  const page = await (await open(`/batches/${otherId}`)).text();
  const [, link = ""] = /href="([^"]*)" download>/.exec(page) ?? [];
  const { pathname, search } = new URL(
    link.replaceAll("&#39;", "'"),
    `${service.url}/batches/${otherId}`,
  );
  expect(pathname).toBe(`/web/v1/files/${encodeURIComponent(FILE_ID)}/content`);
  expect(search).toBe("");
});

test("a page that cannot be is no failure of the server", async () => {
  const statuses = ["/batches/none", "/?status=none", "/batches/batch_none"].map(
    async (path) => (await open(path)).status,
  );
  expect(await Promise.all(statuses)).toEqual([400, 400, 404]);
  const forms = ["/new?file=none", "/new?file=", "/new?file=.", "/new?file=.."].map(
    async (path) => (await open(path)).status,
  );
  expect(await Promise.all(forms)).toEqual([404, 200, 200, 200]);
});

test("an address without a page leads a person back, and a program to the API", async () => {
  for (const path of ["/nowhere", "/batches/a/b", "/web", "/?"]) {
    const answer = await open(path);
    expect([path, answer.status]).toEqual([path, path === "/?" ? 200 : 404]);
    const text = await answer.text();
    const [, home = ""] = /<a class="brand" href="([^"]+)"/.exec(text) ?? [];
    expect([path, new URL(home, service.url + path).pathname]).toEqual([path, "/"]);
  }
  for (const path of ["/v1", "/v1/nowhere", "/openai/v1/nowhere"]) {
    const answer = await open(path);
    expect([path, answer.status]).toEqual([path, 404]);
    expect(await answer.json()).toMatchObject({ error: { type: "invalid_request_error" } });
  }
});

test("an address with a slash too many leads to the page, whose links and events need the other one", async () => {
  for (const [path, page] of [
    ["/files/?after=a", "/files?after=a"],
    [`/batches/${batchId}/`, `/batches/${batchId}`],
    ["//keys", "/keys"],
    ["//", "/"],
  ] as const) {
    const { url } = await open(path);
    expect(url).toBe(service.url + page);
  }
});

test("the command in a refusal is code", async () => {
  expect(await (await open("/keys")).text()).toContain(
    "<code><bdi>batchd keys create --name operator",
  );
  expect(await (await open("/batches/`<b>")).text()).toContain("`&lt;b&gt;");
});

test("events have them escaped, in one line of JSON", async () => {
  for (const path of ["", `/batches/${batchId}`, "/files", "/upstreams"]) {
    const answer = await open(`/web/live${path}`);
    expect(answer.status).toBe(200);
    const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    while (!/^data: .*\n\n/m.test(text)) text += (await reader.read()).value ?? "";
    await reader.cancel();
    expect([path, RAW.exec(text)?.[0]]).toEqual([path, undefined]);
  }
});

test("what is downloaded is no document: it has no scripts, no origin and a name of its own", async () => {
  const answer = await open(`/web/v1/files/${fileId}/content`);
  expect(answer.headers.get("content-security-policy")).toContain("sandbox");
  expect(answer.headers.get("x-content-type-options")).toBe("nosniff");
  // A quotation mark within the name would end it.
  expect(answer.headers.get("content-disposition")).toMatch(
    /^attachment; filename="[^"\u202e]*"; filename\*=UTF-8''[\w%.-]*$/,
  );
  expect(answer.headers.get("cache-control")).toBe("no-store");
});

test.skipIf(!hasChromium())("a text that is read from the right moves none beside it", async () => {
  const message = "\u05d2\u05d3";
  await using model = await startUpstream({ answers: () => refusal(400, { message }) });
  await using other = await startTestService({ upstreamUrl: model.url });
  const { id } = await other.run([chatLine("\u05d0\u05d1", "Hello")]);
  await using browser = await openChromium();
  const page = await browser.newPage();
  await page.goto(`${other.url}/batches/${id}`);
  await page.getByRole("button", { name: "Show examples" }).click();
  await page.locator("#examples li").getByText(message).waitFor();
  /** The number of the line, and the first letters of its id and of its message, in the order in which they are seen. */
  const seen = await page.evaluate(`(() => {
    const texts = document.createTreeWalker(examples, NodeFilter.SHOW_TEXT);
    const letters = [];
    for (let text = texts.nextNode(); text !== null; text = texts.nextNode())
      for (const { 0: letter, index } of text.data.matchAll(/(?<=line )1|[\u05d0\u05d2]/g)) {
        const range = new Range();
        range.setStart(text, index);
        range.setEnd(text, index + 1);
        letters.push({ letter, left: range.getBoundingClientRect().left });
      }
    return letters.sort((a, b) => a.left - b.left).map(({ letter }) => letter);
  })()`);
  expect(seen).toEqual(["1", "\u05d0", "\u05d2"]);
});
