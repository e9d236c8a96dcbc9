/** Interactive requests through a server, to a model server that answers by hand. */
import { startTestService, type TestService } from "./service.ts";
import { type Exchange, startUpstream, type TestUpstream } from "./upstream.ts";

export const CHAT = { model: "m", messages: [{ role: "user" as const, content: "Hello" }] };

export const serviceFor = (url: string, more: object = {}, config: object = {}) =>
  startTestService({
    config: { upstreams: [{ name: "test", base_url: url, models: ["*"], ...more }], ...config },
  });

/** An event of a stream of answers. */
export const sse = (text: string) => `data: ${text}\n\n`;

export class Interactive implements AsyncDisposable {
  readonly upstream: TestUpstream;
  readonly service: TestService;

  private constructor(upstream: TestUpstream, service: TestService) {
    this.upstream = upstream;
    this.service = service;
  }

  static async start(): Promise<Interactive> {
    const upstream = await startUpstream({ answers: "by_hand" });
    return new Interactive(upstream, await serviceFor(upstream.url));
  }

  post(path: string, body: string, init: RequestInit = {}, to = this.service): Promise<Response> {
    return fetch(to.url + path, { method: "POST", body, ...init });
  }

  ask(body: object = CHAT, to = this.service): Promise<Response> {
    return this.post("/v1/chat/completions", JSON.stringify(body), {}, to);
  }

  /** A request that waits for its answer, and its arrival at the upstream. */
  async asked(body: object = CHAT): Promise<[Promise<Response>, Exchange]> {
    return [this.ask(body), await this.upstream.next()];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.service[Symbol.asyncDispose]();
    await this.upstream[Symbol.asyncDispose]();
  }
}
