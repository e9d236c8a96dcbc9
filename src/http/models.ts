/** The routes of models. */
import type { Models } from "../api/models.ts";
import { inSlices } from "../resources/time-slice.ts";
import { countedAnswer } from "./counted-answer.ts";
import { answerJson, answerJsonText, toAsciiJson } from "./json.ts";
import { presentModel } from "./present.ts";
import type { Routes } from "./routes.ts";

/** `servedSinceMs` becomes the creation time of every model, because not all upstreams know theirs. */
export function mountModels(app: Routes, models: Models, servedSinceMs: number): void {
  app.get("/v1/models", async (c) => {
    const items = await countedAnswer(c, async (count) => {
      const texts: string[] = [];
      for await (const group of inSlices(await models.list(c.get("project")))) {
        const text = group.map((model) => toAsciiJson(presentModel(model, servedSinceMs))).join();
        texts.push(text);
        await count(text.length);
      }
      return texts;
    });
    return answerJsonText(c, `{"object":"list","data":[${items.join()}]}`);
  });

  // A name may contain slashes, encoded or not.
  app.get("/v1/models/:model{.+}", async (c) =>
    answerJson(
      c,
      presentModel(await models.find(c.get("project"), c.req.param("model")), servedSinceMs),
    ),
  );

  // OpenAI deletes fine-tuned models. batchd has none, so no name can exist as one.
  app.delete("/v1/models/:model{.+}", async (c) => {
    throw await models.cannotDelete(c.get("project"), c.req.param("model"));
  });
}
