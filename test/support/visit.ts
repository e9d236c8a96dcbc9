/** A browser at the web page of a real server with its model server, for tests of what people do there. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Browser, BrowserContext, BrowserContextOptions, Page } from "playwright-core";
import { openChromium } from "./browser.ts";
import { chatLine, startTestService, type TestService } from "./service.ts";
import { startUpstream, type TestUpstream } from "./upstream.ts";

/** Chooses a file on a page. */
export const choose = (page: Page, name: string, content: string | Buffer): Promise<void> =>
  page
    .locator("input[type=file]")
    .setInputFiles({ name, mimeType: "", buffer: Buffer.from(content) });

interface Parts {
  readonly browser: Browser;
  readonly upstream: TestUpstream;
  readonly service: TestService;
  /** The data folder of the server. */
  readonly folder: string;
}

export class Visit implements AsyncDisposable {
  readonly upstream: TestUpstream;
  readonly service: TestService;
  readonly folder: string;
  readonly #browser: Browser;
  #context: BrowserContext | null = null;
  #problems: string[] = [];

  private constructor({ browser, upstream, service, folder }: Parts) {
    this.#browser = browser;
    this.upstream = upstream;
    this.service = service;
    this.folder = folder;
  }

  static async start(): Promise<Visit> {
    const folder = await mkdtemp(join(tmpdir(), "batchd-web-"));
    const [browser, upstream] = await Promise.all([openChromium(), startUpstream()]);
    const upstreams = [
      { name: "gpu", base_url: upstream.url, models: ["test-model"] },
      // Nothing listens at this port.
      { name: "down", base_url: "http://127.0.0.1:9/v1", models: ["unreachable"] },
    ];
    const prices = [{ model: "*", currency: "USD", input: "0.50", output: "1.50" }];
    const service = await startTestService({ config: { upstreams, prices }, dataDir: folder });
    return new Visit({ browser, upstream, service, folder });
  }

  async openPage(path: string, options: BrowserContextOptions = {}): Promise<Page> {
    this.#context ??= await this.#browser.newContext(options);
    const page = await this.#context.newPage();
    page.on("pageerror", ({ message }) => this.#problems.push(message));
    page.on("console", (message) => {
      if (message.type() === "error") this.#problems.push(message.text());
    });
    page.on("request", (request) => {
      if (!request.url().startsWith(this.service.url)) {
        this.#problems.push(`asked ${request.url()}`);
      }
    });
    await page.goto(this.service.url + path);
    return page;
  }

  /** A batch whose lines the model server does not answer before it is released. */
  async held(count: number, custom = (n: number) => `held-${n}`) {
    this.upstream.hold();
    const before = this.upstream.total;
    const batch = await this.service.submit(
      Array.from({ length: count }, (_, n) => chatLine(custom(n), `question ${n}`)),
    );
    await this.upstream.reached(before + count);
    return batch;
  }

  /** Closes the pages. Returns what they tried against their policy, and the failures of their scripts. */
  async leave(): Promise<readonly string[]> {
    this.upstream.release();
    await this.#context?.close();
    this.#context = null;
    const problems = this.#problems;
    this.#problems = [];
    return problems;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#browser.close();
    await this.service.close();
    await this.upstream.close();
    await rm(this.folder, { recursive: true, force: true });
  }
}
