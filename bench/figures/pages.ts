/**
 * Measures whole batches that people watch: the page of the batch is open in three browsers. The floor is the same batch
 * without a page. A line takes 200 ms, as the browsers need processors of this machine that a model would not have.
 */
import { type Browser, chromium, type Page } from "playwright-core";
import { findChromium } from "../../test/support/browser.ts";
import type { Figure } from "../figure.ts";
import { writeInput } from "../inputs.ts";
import { expectAllAnswered, Pulse } from "../pulse.ts";
import { medianRound, type Round } from "../rounds.ts";
import type { Sizes } from "../sizes.ts";
import { type Server, Stage } from "../stage.ts";

const BROWSERS = 3;
const CONCURRENCY = 256;
const DELAY_MS = 200;

interface Place {
  readonly server: Server;
  readonly fileId: string;
  readonly lineCount: number;
}

export async function measurePages({ pagesLineCount, pagesRounds }: Sizes): Promise<Figure[]> {
  const executablePath = findChromium();
  if (executablePath === null) {
    process.stderr.write("  no Chromium: `npm run programs` installs one\n");
    return [];
  }
  await using stage = await Stage.open();
  const place = await placeOn(stage, pagesLineCount);
  // The first batch learns the limit of the upstream.
  await linesPerSecond(place, []);
  const rounds: Round[] = [];
  while (rounds.length < pagesRounds) {
    const floor = await linesPerSecond(place, []);
    await using browsers = await openBrowsers(executablePath);
    rounds.push({ measured: await linesPerSecond(place, browsers.pages), floor });
  }
  const count = pagesLineCount.toLocaleString("en");
  return [
    {
      name: "pages_open",
      title: `${count} lines, ${DELAY_MS} ms, its page open in ${BROWSERS} browsers ÷ in none`,
      ...medianRound(rounds),
      unit: "lines/s",
      hold: { atLeast: 0.9 },
    },
  ];
}

async function placeOn(stage: Stage, lineCount: number): Promise<Place> {
  const inputPath = stage.path("input.jsonl");
  await writeInput(inputPath, { lineCount });
  const upstream = await stage.upstream({ delayMs: DELAY_MS });
  const server = await stage.server({ upstreamUrl: upstream.url, maxConcurrency: CONCURRENCY });
  return { server, fileId: await server.api.upload(inputPath), lineCount };
}

/** Runs a batch from created to completed. Each page shows it from its start, and must show its end. */
async function linesPerSecond({ server, fileId, lineCount }: Place, pages: readonly Page[]) {
  const startedAtMs = performance.now();
  const { id } = await server.api.createBatch(fileId);
  using pulse = new Pulse(server.api, id);
  const opened = Promise.all(pages.map((page) => page.goto(`${server.url}/batches/${id}`)));
  const [batch] = await Promise.all([pulse.reached("completed"), opened]);
  const tookMs = performance.now() - startedAtMs;
  expectAllAnswered(batch, lineCount);
  await Promise.all(pages.map((page) => page.locator(".head").getByText("completed").waitFor()));
  return (lineCount / tookMs) * 1000;
}

interface OpenBrowsers extends AsyncDisposable {
  readonly pages: readonly Page[];
}

async function openBrowsers(executablePath: string): Promise<OpenBrowsers> {
  const browsers: Browser[] = [];
  const close = async () => {
    await Promise.all(browsers.map((browser) => browser.close()));
  };
  // The bench ends by itself at Ctrl-C. The browsers end with its process.
  const options = { executablePath, args: ["--no-sandbox"], handleSIGINT: false };
  try {
    while (browsers.length < BROWSERS) browsers.push(await chromium.launch(options));
    const pages = await Promise.all(browsers.map((browser) => browser.newPage()));
    return { pages, [Symbol.asyncDispose]: close };
  } catch (error) {
    await close();
    throw error;
  }
}
