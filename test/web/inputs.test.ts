/** Files as people have them, chosen on the page for a new batch, in a real browser. */
import { mkdtemp, rm, stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync, zstdCompressSync } from "node:zlib";
import type { Browser, Locator, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { hasChromium, openChromium } from "../support/browser.ts";
import { chatLine, startTestService, type TestService } from "../support/service.ts";
import { startUpstream, type TestUpstream } from "../support/upstream.ts";
import { choose } from "../support/visit.ts";

describe.skipIf(!hasChromium())("a file that is chosen", () => {
  let browser: Browser;
  let upstream: TestUpstream;
  let service: TestService;
  let page: Page;
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), "batchd-inputs-"));
    [browser, upstream] = await Promise.all([openChromium(), startUpstream()]);
    service = await startTestService({ upstreamUrl: upstream.url });
    page = await (await browser.newContext()).newPage();
  });
  afterAll(async () => {
    await browser.close();
    await service.close();
    await upstream.close();
    await rm(folder, { recursive: true });
  });

  /** Chooses a file, and returns what the page says about it. */
  const chosen = (name: string, content: string | Buffer): Promise<string> =>
    saidAbout({ name, mimeType: "", buffer: Buffer.from(content) });

  async function saidAbout(file: Parameters<Locator["setInputFiles"]>[0]): Promise<string> {
    await page.goto(`${service.url}/new`);
    await page.locator("input[type=file]").setInputFiles(file);
    const checked = page.locator("#checked:not(:empty)").filter({ hasNotText: "Checking" });
    return (await checked.textContent()) ?? "";
  }

  async function fileOf(name: string, content: string): Promise<string> {
    const path = join(folder, name);
    await writeFile(path, content);
    return path;
  }

  async function contents(): Promise<string[]> {
    const lines = await page.locator("#first-lines pre").allTextContents();
    return lines.map((line) => JSON.parse(line).body.messages[0].content as string);
  }

  test.each([
    ["one column", "country\nPeru\nChad\n", ["Peru", "Chad"]],
    ["spaces behind the commas of its header", "id, country\n1,Peru\n", ["Peru"]],
    ["semicolons, and commas in its values", "id;country\n1;Peru, South\n\n", ["Peru, South"]],
    [
      "the separator that Excel writes",
      "sep=;\r\nid;country\r\n1;Peru, South\r\n",
      ["Peru, South"],
    ],
    ["a byte order mark", "\ufeffcountry\nPeru\n", ["Peru"]],
    ["UTF-16", Buffer.from("\ufeffid,country\n1,Côte\n", "utf16le"), ["Côte"]],
    ["UTF-16 without its mark", Buffer.from("id,country\n1,Côte\n", "utf16le"), ["Côte"]],
    ["lines that end in two ways", "country\r\nPeru\nChad\r\n", ["Peru", "Chad"]],
    ["line ends of an old Mac", 'id,country\r1,"Pe\nru"\r', ["Pe\nru"]],
    ["an empty column, and empty lines", "id,,country\n1,,Peru\n\n , ,\n2,,Chad", ["Peru", "Chad"]],
  ])("may be a CSV with %s", async (_, content, values) => {
    expect(await chosen("c.csv", content)).toBe(values.length === 1 ? "1 row." : "2 rows.");
    expect(await contents()).toEqual(values);
    expect(await page.locator("#fault").textContent()).toBe("");
  });

  test("may be a table with tabs, whose cells have commas", async () => {
    expect(await chosen("c.tsv", "country, or region\nPeru, South\n\nChad\n")).toBe("2 rows.");
    expect(await contents()).toEqual(["Peru, South", "Chad"]);
    expect(await chosen("c.TSV", "id\tcountry\r\n1\tPeru\r\n")).toBe("1 row.");
    expect(await contents()).toEqual(["Peru"]);
    expect(await chosen("c.tsv.gz", gzipSync("id\n1\n"))).toContain("Unpack it first");
  });

  test.each([
    [
      Buffer.from("id,c\n1,Côte\n", "latin1"),
      "faults:Line 1: The file is neither UTF-8 nor UTF-16, so",
    ],
    ['id,c\n1,a\n2,"b"c"\n3,d\n', "Line 3: Trailing quote on quoted field is malformed."],
    ['id,c\n1,"a\nb"\n2,c,d\n', "Line 4: Columns: 2 in the header, 3 in this row."],
    ["sep=,\nid,c\n1\n", "Line 3: Columns: 2 in the header, 1 in this row."],
    ["id,c\n1,a\n\n2\n", "Line 4: Columns: 2 in the header, 1 in this row."],
    ["id,c\n1,a\n1,b\n", "Line 3: The id 1 is the same as on a line before."],
    ["id,id\n1,a\n", "Line 1: Two columns have the name id."],
    ["", "Line 1: There is no row below the header."],
  ])("as CSV is not sent with faults, each with its line (%#)", async (content, fault) => {
    expect(await chosen("c.csv", content)).toContain(fault);
  });

  test("as CSV may have a hundred thousand columns, and lists the first ones", async () => {
    const names = Array.from({ length: 100_000 }, (_, at) => `c${at}`);
    expect(await chosen("c.csv", `${names.join(",")}\n${names.join(",")}\n`)).toBe("1 row.");
    expect(await contents()).toEqual(["c99999"]);
    expect(await page.locator("#columns").textContent()).toContain("{{c99}} and 99,900 more");
  });

  test("as CSV may have a cell of megabytes, whose beginning is shown", async () => {
    const path = await fileOf("long.csv", `id,c\n1,"${"\n".repeat(48_000_000)}"\n`);
    expect(await saidAbout(path)).toBe("1 row.");
    expect(await contents()).toEqual([`${"\n".repeat(1_000)}…`]);
  });

  test("as CSV is refused with its size, when the page cannot hold it", async () => {
    const path = await fileOf("large.csv", "id,c\n1,a\n");
    await truncate(path, 200 * 1024 * 1024 + 1);
    expect(await saidAbout(path)).toContain("Line 1: The file is larger than 200 MB.");
    const cells = await fileOf("cells.csv", `${"a,".repeat(999)}b\n`.repeat(5_001));
    expect(await saidAbout(cells)).toContain("more than 5,000,000 cells");
  });

  test("shows the characters that hide in its name and in those of its columns", async () => {
    await chosen("c.csv", "coun\u200btry,a\u202eb\nPeru,c\n");
    expect(await page.locator("#columns").textContent()).toBe(
      "Columns: {{coun⟨U+200B⟩try}} {{a⟨U+202E⟩b}}",
    );
    await page.locator("#prompt").fill("{{country}} {{x\u202e}}");
    expect(await page.locator("#fault").textContent()).toBe(
      "There is no column {{country}}, {{x⟨U+202E⟩}}.",
    );
    await page.goto(`${service.url}/files`);
    await choose(page, "a\u202elnosj.jsonl", chatLine("a", "Peru"));
    await page.getByText("a⟨U+202E⟩lnosj.jsonl is uploaded.").waitFor();
  });

  test("as CSV may have a prompt with braces that never close", async () => {
    await chosen("c.csv", "country\nPeru\n");
    const prompt = `{{${" ".repeat(5_000)}x {{ country }}`;
    await page.locator("#prompt").fill(prompt);
    expect(await contents()).toEqual([prompt.replace("{{ country }}", "Peru")]);
  });

  test("may be packed, which the server unpacks and checks", async () => {
    const line = `${chatLine("packed", "Peru")}\n`;
    const says = "A packed file. The server unpacks it and checks its lines.";
    expect(await chosen("b.jsonl.gz", gzipSync(line))).toContain(says);
    expect(await chosen("a.jsonl.zst", zstdCompressSync(line))).toContain(says);
    await page.getByRole("button", { name: "Create batch" }).click();
    await page.waitForURL(/batches\/batch_/);
    const { request_counts: counts } = await service.ended(page.url().split("/").at(-1)!);
    expect(counts).toMatchObject({ total: 1, completed: 1 });
    expect(await chosen("c.csv.gz", gzipSync("id\n1\n"))).toContain("Unpack it first");
  });

  test("becomes one batch, however often its button is pressed", async () => {
    const before = (await service.openai.batches.list()).data.length;
    await chosen("a.jsonl", chatLine("once", "Peru"));
    await page.getByRole("button", { name: "Create batch" }).dblclick();
    // The page may be the one of the batch by now.
    await page.keyboard.press("Enter");
    await page.waitForURL(/batches\/batch_/);
    await page.goBack();
    await page.goForward();
    expect((await service.openai.batches.list()).data).toHaveLength(before + 1);
  });

  test("is the one of the form on the way back, where choosing it again is no change", async () => {
    await saidAbout(await fileOf("back.jsonl", chatLine("back", "Peru")));
    const create = page.getByRole("button", { name: "Create batch" });
    await create.click();
    await page.waitForURL(/batches\/batch_/);
    const first = page.url();
    await page.goBack();
    await page.getByText("1 line, no fault found.").waitFor();
    await create.click();
    await page.waitForURL((url) => url.pathname.includes("batch_") && url.href !== first);
    const [latest] = (await service.openai.batches.list({ limit: 1 })).data;
    expect(page.url().endsWith(latest?.id ?? "-")).toBe(true);
  });

  test("is read anew when it was corrected and is chosen again", async () => {
    const path = await fileOf("corrected.jsonl", "{");
    expect(await saidAbout(path)).toContain("Line 1: The line is not a JSON object.");
    await writeFile(path, chatLine("corrected", "Peru"));
    await page.locator("input[type=file]").setInputFiles(path);
    await page.getByText("1 line, no fault found.").waitFor();
    await page.getByRole("button", { name: "Create batch" }).click();
    await page.waitForURL(/batches\/batch_/);
  });

  test("before the scripts of the page are there is taken", async () => {
    const { promise: isChosen, resolve: go } = Promise.withResolvers<void>();
    await page.route(/new-batch\.js/, (route) => isChosen.then(() => route.continue()));
    await page.goto(`${service.url}/new`, { waitUntil: "commit" });
    await page.locator("input[type=file]").setInputFiles(await fileOf("e.csv", "country\nPeru\n"));
    go();
    await page.getByText("1 row.").waitFor();
    expect(await contents()).toEqual(["Peru"]);
    await page.unrouteAll();
  });

  test("as CSV may have a column that no prompt can name", async () => {
    expect(await chosen("c.csv", "text,a {b}\nPeru,1\n")).toBe("1 row.");
    expect(await contents()).toEqual(["Peru"]);
    const columns = page.getByText(
      "A prompt cannot use columns with braces in their names: a {b}.",
    );
    await columns.waitFor();
  });

  test("widens no page by long names, on a phone", async () => {
    const long = "very".repeat(60);
    await page.setViewportSize({ width: 360, height: 720 });
    for (const content of [`id,${long}\n1,a\n`, `id,c\n${long},a\n${long},b\n`]) {
      await chosen(`${long}.csv`, content);
      expect(await page.evaluate("document.documentElement.scrollWidth")).toBe(360);
    }
  });

  test.each([
    ["sheet.xlsx", Buffer.from("PK\u0003\u0004\u0014\u0000")],
    ["sheet.xls", Buffer.from("d0cf11e0a1b11ae1", "hex")],
    // Another name makes no table of it.
    ["sheet.csv", Buffer.from("PK\u0003\u0004\u0014\u0000")],
  ])("that is a workbook is told to be one: %s", async (name, content) => {
    expect(await chosen(name, content)).toContain("Save the table as CSV, and choose that file.");
  });

  test("as JSONL is taken as the server takes it", async () => {
    const line = chatLine("a", "Peru");
    expect(await chosen("a.jsonl", `${line}\n\n  \n`)).toBe("1 line, no fault found.");
    const embedding = (id: string, url: string) =>
      JSON.stringify({ custom_id: id, method: "POST", url, body: { model: "m", input: "a" } });
    const both = [embedding("a", "/embeddings"), embedding("b", "/v1/embeddings")].join("\n");
    expect(await chosen("a.jsonl", both)).toBe("2 lines, no fault found.");
    expect(await page.getByLabel("Endpoint").inputValue()).toBe("/v1/embeddings");
    const list = await chosen("a.jsonl", `[${line}]\n${line.replace(/"body":.*/, '"body":[]}')}`);
    expect(list).toMatch(
      /Line 1: The line is or begins an array\..*Line 2: body must be a JSON object/s,
    );
    const mark = await chosen("a.jsonl", `\ufeff${line}`);
    expect(mark).toMatch(/faults:Line 1: It begins with a byte order mark/);
    const latin = Buffer.from(`${line}\n${chatLine("b", "Côte")}`, "latin1");
    expect(await chosen("a.jsonl", latin)).toMatch(/faults:Line 1: The file is not UTF-8/);
  });

  test("as JSONL may have no line that no server takes", async () => {
    const path = await fileOf("long.jsonl", `${chatLine("a", "Peru")}\n{"custom_id":"`);
    await truncate(path, 600 * 1024 * 1024);
    expect(await saidAbout(path)).toContain("Line 2: The line is longer than 256 MB");
  });

  test("is the one that is sent, although the check of another one took longer", async () => {
    await page.goto(`${service.url}/new`);
    const many = Array.from({ length: 60_000 }, (_, at) => chatLine(`l-${at}`, "Hi")).join("\n");
    await choose(page, "slow.jsonl", many);
    await choose(page, "c.csv", "country\nPeru\n");
    await page.getByText("1 row.").waitFor();
    await page.getByLabel("Model").fill("test-model");
    await page.getByLabel("Metadata").fill("team: search");
    await page.getByRole("button", { name: "Create batch" }).click();
    await page.getByText("Write metadata as key=value, not as team: search.").waitFor();
    await page.getByLabel("Metadata").fill("team=search");
    await page.getByRole("button", { name: "Create batch" }).click();
    await page.waitForURL(/batches\/batch_/);
    const { request_counts: counts } = await service.ended(page.url().split("/").at(-1)!);
    expect(counts).toMatchObject({ total: 1, completed: 1 });
  });

  test("in parts begins anew when the server does not know the upload any more", async () => {
    await page.goto(`${service.url}/files`);
    const folder = await mkdtemp(join(tmpdir(), "batchd-inputs-"));
    const path = join(folder, "large.jsonl");
    await writeFile(path, `${chatLine("a", "x".repeat(1_000_000))}\n`.repeat(68));
    const { size, mtimeMs } = await stat(path);
    // Another person began it in this browser, with a key of another project.
    const place = `batchd upload large.jsonl ${size} ${Math.floor(mtimeMs)}`;
    const begun = { id: "upload_unknown", partIds: ["part_1"], startedAtMs: Date.now() };
    await page.evaluate(`localStorage.setItem("${place}", '${JSON.stringify(begun)}')`);
    const picker = page.locator("input[type=file]");
    await picker.setInputFiles(path);
    await page.locator(".upload-text").getByText("Choose the same file again to begin").waitFor();
    await picker.setInputFiles(path);
    await page.getByText("large.jsonl is uploaded.").waitFor();
    await rm(folder, { recursive: true, force: true });
  });
});
