/** The schema of a project in the configuration. */
import { z } from "zod";
import { type ProjectRules, rulesFrom } from "../batch/project.ts";
import { Decimal } from "../contract/price.ts";
import { bytes, int, lifetimeSeconds, name } from "./values.ts";

const MAX_WEIGHT = 1_000;
const NO_LIMIT = "no limit";

const QUOTAS = z.strictObject({
  open_batches: int(0, 1_000_000_000).optional().meta({
    description: "Batches that are not final. One more is refused.",
    left_out: NO_LIMIT,
    example: "10",
  }),
  enqueued_lines: int(0, 1_000_000_000_000).optional().meta({
    description:
      "Lines without an answer in open batches together. A batch that would exceed it fails with `token_limit_exceeded`.",
    left_out: NO_LIMIT,
    example: "1000000",
  }),
  enqueued_tokens: int(0, 1_000_000_000_000_000).optional().meta({
    description:
      "Input tokens of open batches together, as estimated from their bytes. A batch that would exceed it fails with `token_limit_exceeded`.",
    left_out: NO_LIMIT,
    example: "500000000",
  }),
  files: int(0, 1_000_000_000).optional().meta({
    description:
      "Files, results included. One more upload is refused, and a batch once results are beyond it.",
    left_out: NO_LIMIT,
    example: "10000",
  }),
  stored_bytes: bytes(0, Number.MAX_SAFE_INTEGER).optional().meta({
    description:
      "Bytes of all files together, with results and the parts of uploads that are not completed. An upload beyond it is refused, and a batch once results are beyond it.",
    left_out: NO_LIMIT,
    example: "50GB",
  }),
  tokens_per_day: int(0, 1_000_000_000_000_000).optional().meta({
    description:
      "Tokens of its batches in a day (UTC), input and answers. Beyond it batches pause until the next day.",
    left_out: NO_LIMIT,
    example: "100000000",
  }),
  cost_per_month: Decimal.optional().meta({
    description:
      "Cost of its batches in a month (UTC), by `prices`. Beyond it batches pause until the next month.",
    left_out: NO_LIMIT,
    example: '"100.00"',
  }),
  requests_per_minute: int(1, 1_000_000).optional().meta({
    description: "Requests to the API in a minute of the clock, at all servers together.",
    left_out: NO_LIMIT,
    example: "600",
  }),
  interactive_at_once: int(1, 1_000_000).optional().meta({
    description: "Interactive requests under way at once, at all servers together.",
    left_out: NO_LIMIT,
    example: "8",
  }),
});

export const ProjectEntry = z.strictObject({
  name: name.describe("The project, as keys name it. Every project has one entry at most."),
  weight: int(1, MAX_WEIGHT).default(1).meta({
    description:
      "Its share where several projects wait: with 2 it sends twice the lines of one with 1.",
    example: "2",
  }),
  models: z
    .array(z.string().min(1).max(1_024))
    .min(1)
    .default(["*"])
    .describe(
      "The models that it may ask for. `*` in a name stands for any characters, such as `llama-3*`.",
    ),
  quotas: QUOTAS.prefault({}).meta({ description: "How much it may use.", left_out: "no limits" }),
  files_expire_after: lifetimeSeconds.optional().meta({
    description: "The longest lifetime of files that it uploads from now on.",
    left_out: "as the client asks; 30 days for the input of batches",
    example: "30d",
  }),
  results_expire_after: lifetimeSeconds.optional().meta({
    description: "The longest lifetime of results that are written from now on.",
    left_out: "as the client asks, and 30 days otherwise",
    example: "30d",
  }),
});

type ProjectConfig = z.infer<typeof ProjectEntry>;

export const UNLIMITED: ProjectRules = rulesFrom(ProjectEntry.parse({ name: "any" }));

/** The rules of a project whose data is being deleted: no line of its batches goes out any more. */
export const SENDS_NOTHING: ProjectRules = rulesFrom(
  ProjectEntry.parse({ name: "any", quotas: { tokens_per_day: 0 } }),
);

/** Returns the rules of a project; null for one without an entry. */
export function projectRules(
  projects: readonly ProjectConfig[],
  project: string,
): ProjectRules | null {
  let rules = rulesByName.get(projects);
  if (rules === undefined) {
    rules = new Map(projects.map((each) => [each.name, rulesFrom(each)]));
    rulesByName.set(projects, rules);
  }
  return rules.get(project) ?? null;
}

/** The rules of each configuration, by project: they are asked for with each line of a batch. */
const rulesByName = new WeakMap<readonly ProjectConfig[], ReadonlyMap<string, ProjectRules>>();
