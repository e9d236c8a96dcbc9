/** The schemas of models. */
import { z } from "zod";
import { UnixSeconds } from "./unix-seconds.ts";

export const ModelObject = z
  .object({
    id: z.string(),
    object: z.literal("model"),
    created: UnixSeconds,
    owned_by: z.string(),
  })
  .meta({ id: "Model" });
export type ModelObject = z.infer<typeof ModelObject>;

export const ModelList = z
  .object({ object: z.literal("list"), data: z.array(ModelObject) })
  .meta({ id: "ModelList" });
