/** Lists the models that a client may name: all that the upstreams serve, under their public names. */
import { allowsModel, type RulesOf } from "../batch/project.ts";
import { PublicError } from "../errors.ts";
import { inSlices } from "../resources/time-slice.ts";
import { truncate } from "../text/truncate.ts";
import type { UpstreamModel, Upstreams } from "../upstream/upstream.ts";

export class Models {
  readonly #upstreams: Pick<Upstreams, "listModels">;

  readonly #rulesOf: RulesOf;

  constructor(upstreams: Pick<Upstreams, "listModels">, rulesOf: RulesOf) {
    this.#upstreams = upstreams;
    this.#rulesOf = rulesOf;
  }

  /** Lists the models that the project may use. */
  async list(project: string): Promise<readonly UpstreamModel[]> {
    const rules = this.#rulesOf(project);
    const allowed: UpstreamModel[] = [];
    for await (const group of inSlices(await this.#upstreams.listModels())) {
      allowed.push(...group.filter(({ id }) => allowsModel(rules, id)));
    }
    return allowed;
  }

  async find(project: string, id: string): Promise<UpstreamModel> {
    const model = await this.#named(project, id);
    if (model === undefined) throw notFound(`The model '${truncate(id)}' does not exist`);
    return model;
  }

  /** Returns the error for a delete. No model can be deleted. */
  async cannotDelete(project: string, id: string): Promise<PublicError> {
    if ((await this.#named(project, id)) === undefined) {
      return notFound(`The model '${truncate(id)}' does not exist`);
    }
    return notFound(
      `The model '${truncate(id)}' is served by an upstream of this server. There is no fine-tuned model of this name that could be deleted.`,
    );
  }

  async #named(project: string, id: string): Promise<UpstreamModel | undefined> {
    if (!allowsModel(this.#rulesOf(project), id)) return undefined;
    return (await this.#upstreams.listModels()).find((each) => each.id === id);
  }
}

const notFound = (message: string) =>
  new PublicError("model_not_found", message, { param: "model" });
