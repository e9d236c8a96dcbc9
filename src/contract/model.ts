/** The schemas of models. */
import { z } from "zod";

export const ModelObject = z
  .object({
    id: z.string(),
    object: z.literal("model"),
    created: z.int().describe("Unix seconds."),
    owned_by: z.string(),
  })
  .meta({ id: "Model" });
export type ModelObject = z.infer<typeof ModelObject>;

export const ModelList = z
  .object({ object: z.literal("list"), data: z.array(ModelObject) })
  .meta({ id: "ModelList" });
