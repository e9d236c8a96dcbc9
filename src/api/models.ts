/** Lists the models that a client may name: all that the upstreams serve, under their public names. */
import { truncate } from "../batch/truncate.ts";
import { PublicError } from "../errors.ts";
import type { UpstreamModel, Upstreams } from "../upstream/upstream.ts";

export class Models {
  readonly #upstreams: Pick<Upstreams, "listModels">;

  constructor(upstreams: Pick<Upstreams, "listModels">) {
    this.#upstreams = upstreams;
  }

  list(): Promise<readonly UpstreamModel[]> {
    return this.#upstreams.listModels();
  }

  async find(id: string): Promise<UpstreamModel> {
    const model = await this.#named(id);
    if (model === undefined) throw notFound(`The model '${truncate(id)}' does not exist`);
    return model;
  }

  /** Returns the error for a delete. No model can be deleted. */
  async cannotDelete(id: string): Promise<PublicError> {
    if ((await this.#named(id)) === undefined) {
      return notFound(`The model '${truncate(id)}' does not exist`);
    }
    return notFound(
      `The model '${truncate(id)}' is served by an upstream of this server. There is no fine-tuned model of this name that could be deleted.`,
    );
  }

  async #named(id: string): Promise<UpstreamModel | undefined> {
    return (await this.list()).find((each) => each.id === id);
  }
}

const notFound = (message: string) =>
  new PublicError("model_not_found", message, { param: "model" });
