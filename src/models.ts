/** The models a client may name: what the upstreams serve, under their public names. */
import { shown } from "./batch/shown.ts";
import { PublicError } from "./errors.ts";
import type { UpstreamModel, Upstreams } from "./upstream/upstream.ts";

export class Models {
  readonly #upstreams: Pick<Upstreams, "listModels">;

  constructor(upstreams: Pick<Upstreams, "listModels">) {
    this.#upstreams = upstreams;
  }

  list(): Promise<readonly UpstreamModel[]> {
    return this.#upstreams.listModels();
  }

  async find(id: string): Promise<UpstreamModel> {
    const model = (await this.list()).find((each) => each.id === id);
    if (model !== undefined) return model;
    throw new PublicError("model_not_found", `The model '${shown(id)}' does not exist`, {
      param: "model",
    });
  }
}
