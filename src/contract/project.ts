/** The schemas of projects that are made at run time. The configuration has the same fields, with units. */
import { z } from "zod";
import { Name } from "./key.ts";
import { pageOf } from "./page.ts";
import { Decimal } from "./price.ts";
import { UnixSeconds } from "./unix-seconds.ts";

const most = (max: number) => z.int().min(0).max(max).nullish();

const Quotas = z
  .strictObject({
    open_batches: most(1_000_000_000),
    enqueued_lines: most(1_000_000_000_000),
    enqueued_tokens: most(1_000_000_000_000_000),
    stored_bytes: most(Number.MAX_SAFE_INTEGER),
    files: most(1_000_000_000),
    tokens_per_day: most(1_000_000_000_000_000),
    cost_per_month: Decimal.nullish(),
    requests_per_minute: z.int().min(1).max(1_000_000).nullish(),
    interactive_at_once: z.int().min(1).max(1_000_000).nullish(),
  })
  .meta({ id: "Quotas", description: "Null, or left out: no limit." });

const LIFETIME_MAX_SECONDS = 315_360_000;
const Lifetime = z.int().min(1).max(LIFETIME_MAX_SECONDS).nullable().describe("Seconds.");

const rules = {
  weight: z
    .int()
    .min(1)
    .max(1_000)
    .default(1)
    .describe("Its share where several projects wait for the same model server."),
  models: z
    .array(z.string().min(1).max(1_024))
    .min(1)
    .max(1_000)
    .default(["*"])
    .describe("The models that it may ask for. `*` stands for any characters."),
  quotas: Quotas.default({}),
  files_expire_after: Lifetime.default(null),
  results_expire_after: Lifetime.default(null),
};

/** The rules of a project, with all defaults. */
export const ProjectSettings = z.strictObject(rules);
export type ProjectSettings = z.infer<typeof ProjectSettings>;

export const PutProject = z
  .strictObject({ name: Name.describe("The project, as keys name it."), ...rules })
  .meta({ id: "PutProject" });

export const ProjectObject = z
  .object({
    id: z.string().describe("Its name."),
    object: z.literal("project"),
    ...rules,
    created_at: UnixSeconds,
    deleted_at: z
      .int()
      .nullable()
      .describe("Set while the data of the project is being deleted. Unix seconds."),
  })
  .meta({ id: "Project" });
export type ProjectObject = z.infer<typeof ProjectObject>;

export const ProjectPage = pageOf(ProjectObject).meta({ id: "ProjectPage" });

export const DeletedProject = z
  .object({ id: z.string(), object: z.literal("project"), deleted: z.literal(true) })
  .meta({ id: "DeletedProject" });
