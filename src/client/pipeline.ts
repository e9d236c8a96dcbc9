/**
 * `batchd pipeline run`: creates a chain of batches and follows it. The server alone keeps the state, so a run may be killed
 * at any moment, and go on at another machine.
 *
 * Each step has a key: a digest of the data and of all steps up to it. The metadata of its batch have the key, and a run looks
 * for that batch before it creates one. The creation has the key as its `Idempotency-Key`, so a request whose answer was lost makes
 * no second batch. A changed step has another key: it and those behind it run anew, and those before it are kept.
 */
import { isUtf8 } from "node:buffer";
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { APIError } from "openai";
import { isFinal } from "../batch/status.ts";
import { type Pipeline, type PipelineStep, parsePipeline } from "../config/pipeline.ts";
import type { ResultFormat } from "../contract/results.ts";
import { printable } from "../printable.ts";
import { complain, note, say, sayJson } from "../terminal/lines.ts";
import { createBatch } from "./creation.ts";
import { EXIT, exitCodeOf } from "./exit-codes.ts";
import { CommandFailure, cannotRead } from "./failure.ts";
import { digestOf, type InputFile, nameFor, openInput } from "./input.ts";
import { sayWhatStays } from "./left-behind.ts";
import { firstInput } from "./pipeline-input.ts";
import type { Session } from "./session.ts";
import type { ShownBatch } from "./shown-batch.ts";
import { uploadFile } from "./upload.ts";
import { assertWaitFlags, sayEnd, watch, writeAnswers } from "./wait.ts";

export interface PipelineFlags {
  readonly fromStep?: number;
  readonly output?: string;
  readonly format: ResultFormat;
  readonly json?: boolean;
}

/** The metadata of the batches of a pipeline. */
const KEY = "pipeline_key";

interface KeyedStep {
  readonly step: PipelineStep;
  readonly number: number;
  readonly key: string;
}

interface Link {
  readonly keyed: KeyedStep;
  readonly batch: ShownBatch;
}

interface Following {
  readonly flags: PipelineFlags;
  readonly session: Session;
  readonly steps: readonly KeyedStep[];
  /** The answer to the creation of the step behind the chain, which could not be made; null when all were. */
  readonly refusal: APIError | null;
}

export async function runPipeline(
  file: string,
  data: string,
  { flags, session }: { readonly flags: PipelineFlags; readonly session: Session },
): Promise<number> {
  await assertWaitFlags(flags, data, file);
  const pipeline = await readPipeline(file);
  const from = flags.fromStep ?? Number.POSITIVE_INFINITY;
  if (flags.fromStep !== undefined && from > pipeline.steps.length) {
    throw new CommandFailure(`${file} has ${pipeline.steps.length} steps, so none is ${from}`);
  }
  await using rows = await openInput(data, session.signal);
  if (rows.bytes === 0) throw new CommandFailure(`${nameFor(data)} is empty`);
  const steps = keyedSteps(pipeline, await digestOf(rows, session.signal));
  const chain: Link[] = [];
  let refusal: APIError | null = null;
  for (const keyed of steps) {
    const source = chain.at(-1)?.batch.id ?? null;
    const known = keyed.number < from ? await findBatch(keyed, source, session) : null;
    const creation = { keyed, pipeline, source, rows, from };
    const batch = known ?? (await createStep(creation, session).catch(refusalOfSource));
    if (batch instanceof APIError) {
      refusal = batch;
      break;
    }
    if (!flags.json) {
      const found = isFinal(batch.status) ? "has ended" : "goes on";
      const verb = known === null ? "created" : found;
      note(`${titleOf(keyed, steps)}: ${printable(batch.id)} ${verb}`);
    }
    chain.push({ keyed, batch });
  }
  return await followChain(chain, { flags, session, steps, refusal });
}

/** Returns the refusal to make a batch of one that has ended in a way that nothing can be made of. */
function refusalOfSource(error: unknown): APIError {
  if (error instanceof APIError && error.status === 409 && error.param === "x_batchd.from") {
    return error;
  }
  throw error;
}

const titleOf = ({ number, step }: KeyedStep, { length }: { readonly length: number }) =>
  printable(`step ${number} of ${length}, ${step.name}`);

async function readPipeline(file: string): Promise<Pipeline> {
  const bytes = await readFile(file).catch((cause: Error) => {
    throw cannotRead(file, cause);
  });
  // Letters of another encoding would go out as question marks.
  if (!isUtf8(bytes)) throw new CommandFailure(`${file} is not a text file in UTF-8`);
  const parsed = parsePipeline(bytes.toString());
  if (!("problems" in parsed)) return parsed;
  throw new CommandFailure(`${file} is no pipeline: ${parsed.problems.join("; ")}`);
}

/** Names what a step does and what it begins with, so that equal runs have equal keys. */
function keyedSteps({ name, steps }: Pipeline, digest: string): readonly KeyedStep[] {
  let before = `${name} ${digest}`;
  return steps.map((step, i) => {
    before = createHash("sha256")
      .update(`${before}\n${JSON.stringify(step)}`)
      .digest("hex");
    return { step, number: i + 1, key: before.slice(0, 40) };
  });
}

/** Finds the newest batch of a step that was made of this source. */
async function findBatch(
  { key }: KeyedStep,
  source: string | null,
  { server, signal }: Session,
): Promise<ShownBatch | null> {
  const query = { [`metadata[${KEY}]`]: key, limit: 100 };
  const { data } = await server.page<ShownBatch>("/batches", query, signal);
  const isSame = ({ x_batchd: more }: ShownBatch) => (more?.from?.batch ?? null) === source;
  return data.find((batch) => batch.metadata?.[KEY] === key && isSame(batch)) ?? null;
}

interface Creation {
  readonly keyed: KeyedStep;
  readonly pipeline: Pipeline;
  /** The batch of the step before; null for the first step. */
  readonly source: string | null;
  readonly rows: InputFile;
  readonly from: number;
}

async function createStep(creation: Creation, session: Session): Promise<ShownBatch> {
  const { keyed, source, rows } = creation;
  const { step } = keyed;
  if (source !== null) {
    const from = { batch: source, lines: step.lines, template: step.template };
    return createFrom({ source: from }, creation, session);
  }
  const fileId = await uploadedData(rows, step, session);
  return createFrom({ input_file_id: fileId }, creation, session).catch((error: unknown) => {
    // Another run uploads the data again.
    sayWhatStays({ fileId, again: null }, error, session.server);
    throw error;
  });
}

type Origin =
  | { readonly input_file_id: string }
  | { readonly source: Pick<PipelineStep, "lines" | "template"> & { readonly batch: string } };

async function createFrom(
  origin: Origin,
  { keyed, pipeline, source, from }: Creation,
  session: Session,
): Promise<ShownBatch> {
  const { step, number, key } = keyed;
  const body = {
    ...("input_file_id" in origin && { input_file_id: origin.input_file_id }),
    endpoint: step.endpoint,
    completion_window: step.window,
    metadata: {
      name: `${pipeline.name}-${number}-${step.name}`,
      pipeline: pipeline.name,
      step: `${number} ${step.name}`,
      [KEY]: key,
    },
    x_batchd: {
      default_model: step.default_model,
      dedupe: step.dedupe,
      priority: step.priority,
      ...("source" in origin && { from: origin.source }),
    },
  };
  const extensions = "the options of a step";
  const createAnew = () => createBatch(session.server, body, { extensions });
  // A step that is to be done again needs another batch than the one with this key.
  if (number === from) return createAnew();
  const idempotencyKey = `pipeline-${key}-${source ?? "data"}`;
  try {
    const batch = await createBatch(session.server, body, { extensions, idempotencyKey });
    // The answer of a batch that was deleted since is still there.
    return await session.server.batch(batch.id);
  } catch (error) {
    if (!isAnsweredBefore(error)) throw error;
    return (await findBatch(keyed, source, session)) ?? createAnew();
  }
}

/** Whether an earlier run has made the batch: of another upload of the data, or it was deleted since. */
const isAnsweredBefore = (error: unknown): boolean =>
  error instanceof APIError && (error.code === "idempotency_key_reused" || error.status === 404);

async function uploadedData(
  rows: InputFile,
  step: PipelineStep,
  { server, signal }: Session,
): Promise<string> {
  await using input = await firstInput(rows, step, signal);
  return (await uploadFile(server, input, { purpose: "batch", signal })).id;
}

/** Follows each step to its end. A step that fails ends those behind it at the server, with faults that say so. */
async function followChain(chain: readonly Link[], following: Following): Promise<number> {
  const { flags, session, steps, refusal } = following;
  let code: number = EXIT.done;
  let last: ShownBatch | null = null;
  for (const { keyed, batch } of chain) {
    if (!flags.json) note(titleOf(keyed, steps));
    const before = last;
    const hasEnded = isFinal(batch.status);
    last = hasEnded ? batch : await watch(batch.id, session, { json: flags.json === true });
    if (last === null) {
      note("Run the same command again to follow all steps.");
      return EXIT.interrupted;
    }
    // A batch that is watched has said what became of it.
    if (hasEnded && flags.json) sayJson(last);
    else if (hasEnded) sayEnd(last, session.server);
    const ended = exitCodeOf(last);
    if (ended === EXIT.someLinesFailed) code = ended;
    else if (ended !== EXIT.done) {
      if (hasNoSource(last)) {
        if (hasNothingToDo(keyed, before)) return sayNothingToDo(keyed, flags, code);
        sayStepBefore(keyed.number - 1);
      } else
        note(
          `${titleOf(keyed, steps)} has not completed. To do it again: --from-step ${keyed.number}`,
        );
      return ended;
    }
  }
  if (refusal !== null) {
    const refused = steps[chain.length];
    if (refused && hasNothingToDo(refused, last)) return sayNothingToDo(refused, flags, code);
    complain(session.server.explain(refusal) ?? refusal.message);
    sayStepBefore(chain.length);
    return EXIT.failed;
  }
  if (last !== null) await deliver(last, flags, session);
  return code;
}

/** Whether nothing could be made of the batch of the step before. The step itself would fail again. */
const hasNoSource = ({ errors }: ShownBatch): boolean =>
  errors?.data?.some(({ code }) => code === "source_unusable") ?? false;

/** Whether a step is for the lines that failed in the step before, and none has. */
const hasNothingToDo = ({ step }: KeyedStep, before: ShownBatch | null): boolean =>
  step.lines === "failed" && before?.request_counts?.failed === 0;

function sayNothingToDo({ number, step }: KeyedStep, { output }: PipelineFlags, code: number) {
  const file = output === undefined ? "" : `, and ${output} is not written`;
  note(
    printable(`no line of step ${number - 1} has failed: ${step.name} has nothing to do${file}`),
  );
  return code;
}

const sayStepBefore = (number: number) =>
  note(`To do the step before it again: --from-step ${number}`);

/** Writes the answers of the last step, or says which batch has them. */
async function deliver(
  batch: ShownBatch,
  { output, format, json }: PipelineFlags,
  session: Session,
) {
  if (output === undefined) {
    if (!json) say(printable(batch.id));
    return;
  }
  await writeAnswers(batch, { output, format }, session);
}
