/**
 * The file of a pipeline: batches that follow one another, each made of the questions and answers of the one before it.
 * Unlike the configuration it takes nothing from the environment: prompts may have any text.
 */
import { parseDocument } from "yaml";
import { z } from "zod";
import { parseTemplate } from "../batch/template.ts";
import { BATCH_ENDPOINTS } from "../contract/batch.ts";
import { SOURCE_LINES } from "../contract/batch-extension.ts";
import { PRIORITIES } from "../contract/create-batch.ts";
import { JsonObject } from "../contract/json-object.ts";
import { DEFAULT_COMPLETION_WINDOW } from "../contract/window.ts";
import { describeIssue, yamlFault } from "./problems.ts";

const Name = z.string().regex(/^[\w.-]{1,64}$/, "expected letters, digits, dots and dashes");

const Step = z.strictObject({
  name: Name,
  endpoint: z.enum(BATCH_ENDPOINTS).default("/v1/chat/completions"),
  window: z.string().default(DEFAULT_COMPLETION_WINDOW),
  /** The body of each line. The first step may leave it out: its data are lines of a batch then. */
  template: JsonObject.optional(),
  lines: z.enum(SOURCE_LINES).optional(),
  default_model: z.string().optional(),
  dedupe: z.boolean().optional(),
  priority: z.int().min(PRIORITIES.min).max(PRIORITIES.max).optional(),
});

const MAX_STEPS = 32;
const MAX_ALIASES = 100;

const PipelineFile = z
  .strictObject({ name: Name, steps: z.array(Step).min(1).max(MAX_STEPS) })
  .superRefine(({ steps }, context) => {
    steps.forEach(({ template, lines }, i) => {
      const add = (key: string, message: string) =>
        context.addIssue({ code: "custom", path: ["steps", i, key], message });
      if (i > 0 && template === undefined) add("template", "only the first step needs none");
      if (i === 0 && lines !== undefined) add("lines", "the first step has no batch before it");
      const parsed = template === undefined ? null : parseTemplate(template);
      if (typeof parsed === "string") add("template", parsed);
      if (parsed === null || typeof parsed === "string") return;
      const readsOutput = parsed.placeholders.some(({ root }) => root === "output");
      if (i === 0 && readsOutput) add("template", "the first step has no {{output.…}}");
    });
  });

export type PipelineStep = z.infer<typeof Step>;
export type Pipeline = z.infer<typeof PipelineFile>;

/** Returns the pipeline, or every problem of its text. */
export function parsePipeline(text: string): Pipeline | { readonly problems: readonly string[] } {
  const document = parseDocument(text);
  if (document.errors.length > 0) {
    return { problems: document.errors.slice(0, 5).map(({ message }) => yamlFault(message)) };
  }
  let value: unknown;
  try {
    value = document.toJS({ maxAliasCount: MAX_ALIASES });
  } catch (error) {
    // An alias without its anchor, or a file of a few lines whose aliases would unfold to gigabytes.
    return { problems: [yamlFault((error as Error).message)] };
  }
  const parsed = PipelineFile.safeParse(value, { reportInput: true });
  if (parsed.success) return parsed.data;
  return { problems: parsed.error.issues.flatMap(problemsIn) };
}

const problemsIn = (issue: z.core.$ZodIssue): string[] =>
  issue.path.length === 0 && issue.code !== "unrecognized_keys"
    ? [issue.message]
    : describeIssue(issue, PipelineFile);
