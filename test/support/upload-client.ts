/** A client of the uploads in parts, for their tests. */
import { expect } from "vitest";
import { chatLine, type TestApi, type Wire, wireOf } from "./test-http.ts";

/** The content of an upload of batch input. */
export const CONTENT = `${chatLine("a")}${chatLine("b")}${chatLine("c")}`;

type Body = string | FormData | null;
type UploadWire = Wire & {
  readonly file: Wire | null;
  readonly bytes: number;
  readonly filename: string;
};

/** A request for an upload of {@link CONTENT}. */
export const uploadRequest = (more: Record<string, unknown> = {}) =>
  JSON.stringify({
    filename: "input.jsonl",
    purpose: "batch",
    bytes: CONTENT.length,
    mime_type: "text/jsonl",
    ...more,
  });

export class UploadClient {
  readonly #api: TestApi;

  constructor(api: TestApi) {
    this.#api = api;
  }

  async post(path: string, body: Body = null) {
    const response = await this.#api.fetch(`/v1/uploads${path}`, { method: "POST", body });
    return { status: response.status, body: (await wireOf(response)) as UploadWire };
  }

  async create(more: Record<string, unknown> = {}): Promise<string> {
    return (await this.post("", uploadRequest(more))).body.id;
  }

  async addPart(id: string, content: string | Buffer): Promise<string> {
    const form = new FormData();
    form.set("data", new Blob([content]), "upload");
    const { status, body } = await this.post(`/${id}/parts`, form);
    expect(status).toBe(200);
    return body.id;
  }

  complete(id: string, part_ids: readonly string[], more: object = {}) {
    return this.post(`/${id}/complete`, JSON.stringify({ part_ids, ...more }));
  }

  /** An upload of batch input with its two parts. */
  async pending() {
    const id = await this.create();
    const parts = [
      await this.addPart(id, CONTENT.slice(0, 100)),
      await this.addPart(id, CONTENT.slice(100)),
    ];
    return { id, parts };
  }

  async contentOf(fileId: string): Promise<Buffer> {
    const response = await this.#api.fetch(`/v1/files/${fileId}/content`);
    return Buffer.from(await response.arrayBuffer());
  }
}

export const refusal = (message: string | RegExp, param: string | null = null) => ({
  status: 400,
  body: {
    error: {
      message: typeof message === "string" ? message : expect.stringMatching(message),
      type: "invalid_request_error",
      param,
      code: null,
    },
  },
});
