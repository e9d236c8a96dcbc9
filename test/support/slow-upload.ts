/** A file on its way to the server, as slow as its test wants. */
const BOUNDARY = "boundary";

export class SlowUpload {
  readonly #body = new TransformStream<Uint8Array, Uint8Array>();
  readonly #writer = this.#body.writable.getWriter();
  readonly #status: Promise<number>;

  /** Begins with the file at once, unless `waits`. */
  constructor(url: string, key: string, { waits = false }: { readonly waits?: boolean } = {}) {
    const init = {
      method: "POST",
      headers: {
        authorization: `Bearer ${key}`,
        "content-type": `multipart/form-data; boundary=${BOUNDARY}`,
      },
      body: this.#body.readable,
      duplex: "half",
    };
    this.#status = fetch(`${url}/v1/files`, init as RequestInit).then(({ status }) => status);
    void this.send(
      `--${BOUNDARY}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n`,
    );
    if (!waits) void this.begin();
  }

  /** Begins with the file, behind the fields of the form. */
  begin(): Promise<void> {
    return this.send(
      `--${BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="a.txt"\r\n\r\n`,
    );
  }

  send(text: string): Promise<void> {
    return this.#writer.write(new TextEncoder().encode(text));
  }

  /** The status of the answer. */
  async end(): Promise<number> {
    await this.send(`\r\n--${BOUNDARY}--\r\n`).catch(() => {});
    await this.#writer.close().catch(() => {});
    return this.#status;
  }
}
