/** `batchd submit` and `batchd retry`: make a batch, and wait for it if asked to. */
import { existsSync } from "node:fs";
import { BATCH_ENDPOINTS } from "../contract/batch.ts";
import { METADATA_LIMITS } from "../contract/create-batch.ts";
import { characterCount } from "../contract/text.ts";
import { DEFAULT_COMPLETION_WINDOW } from "../contract/window.ts";
import { printable } from "../printable.ts";
import { note, say, sayJson } from "../terminal/lines.ts";
import { isOutputTerminal } from "../terminal/terminal.ts";
import { truncate } from "../text/truncate.ts";
import { bytes } from "../words.ts";
import { createBatch } from "./creation.ts";
import { EXIT } from "./exit-codes.ts";
import { CommandFailure } from "./failure.ts";
import { type BatchFlags, givenOptions } from "./given-options.ts";
import { endpointFor, openInput } from "./input.ts";
import { sayPerhapsMade, sayWhatStays } from "./left-behind.ts";
import type { Session } from "./session.ts";
import { isOfBatchd, type ShownBatch } from "./shown-batch.ts";
import { uploadFile } from "./upload.ts";
import { assertWaitFlags, waitFor } from "./wait.ts";

export interface SubmitFlags extends BatchFlags {
  readonly endpoint?: string;
}

export async function submit(file: string, flags: SubmitFlags, session: Session): Promise<number> {
  await assertWaitFlags(flags, file);
  // What is refused behind the upload has cost its time.
  assertMetadata(flags.metadata ?? {});
  const { fileId, endpoint, isUploaded } = await inputFor(file, flags, session);
  const body = { input_file_id: fileId, endpoint, ...commonFields(flags) };
  const batch = await create(body, session).catch((error: unknown) => {
    if (isUploaded) {
      const words = ["submit", fileId, "--endpoint", endpoint];
      const again = { words, options: givenOptions(flags) };
      sayWhatStays({ fileId, again }, error, session.server);
    }
    throw error;
  });
  return goOn(batch, flags, session);
}

/** Refuses metadata that OpenAI and batchd refuse. */
function assertMetadata(metadata: Readonly<Record<string, string>>): void {
  const { pairs, keyLength, valueLength } = METADATA_LIMITS;
  const entries = Object.entries(metadata);
  if (entries.length > pairs) {
    throw new CommandFailure(
      `--metadata is given ${entries.length} times: at most ${pairs} are kept`,
    );
  }
  for (const [key, value] of entries) {
    assertLength(`the key of --metadata ${truncate(key)}`, key, keyLength);
    assertLength(`the value of --metadata ${truncate(key)}`, value, valueLength);
  }
}

function assertLength(what: string, text: string, maxLength: number): void {
  const length = characterCount(text);
  if (length <= maxLength) return;
  throw new CommandFailure(`${what} has ${length} characters: at most ${maxLength} are kept`);
}

interface Input {
  readonly fileId: string;
  readonly endpoint: string;
}

/** Uploads a file, unless it names one that the server has. */
async function inputFor(
  file: string,
  { endpoint: asked }: SubmitFlags,
  { server, signal }: Session,
): Promise<Input & { readonly isUploaded: boolean }> {
  if (file.startsWith("file-") && !existsSync(file)) {
    if (asked !== undefined) return { fileId: file, endpoint: asked, isUploaded: false };
    throw new CommandFailure(
      `--endpoint is needed with the id of a file, such as --endpoint ${BATCH_ENDPOINTS[0]}`,
    );
  }
  await using input = await openInput(file, signal);
  const endpoint = asked ?? (await endpointFor(input, file));
  if (isOutputTerminal()) note(`uploading ${printable(input.name)} (${bytes(input.bytes)})`);
  const { id } = await uploadFile(server, input, { purpose: "batch", signal });
  return { fileId: id, endpoint, isUploaded: true };
}

export interface RetryFlags extends BatchFlags {
  readonly lines: string;
  readonly merge?: boolean;
}

/**
 * Makes a batch of lines of another one. The server has them all, so nothing is uploaded. What its owner has set for the old
 * batch holds for the new one, but for what the flags say: without the budget, the new one might cost any amount.
 */
export async function retry(id: string, flags: RetryFlags, session: Session): Promise<number> {
  await assertWaitFlags(flags);
  const { server } = session;
  const old = await server.batch(id);
  if (!isOfBatchd(old)) throw server.lacks("retry for a batch");
  const fields = commonFields({ ...flags, ...keptFields(old, flags) });
  const body = {
    endpoint: old.endpoint,
    ...fields,
    x_batchd: {
      ...fields.x_batchd,
      from: { batch: id, lines: flags.lines, ...(flags.merge && { merge: true }) },
    },
  };
  const batch = await create(body, session).catch((error: unknown) => {
    sayPerhapsMade(error, server);
    throw error;
  });
  return goOn(batch, flags, session);
}

function keptFields(
  { completion_window, metadata, x_batchd: own }: ShownBatch,
  { window = completion_window, priority = own?.priority, ...flags }: RetryFlags,
): Pick<BatchFlags, "window" | "metadata" | "priority" | "budget"> {
  // The server takes no budget for a model without a price.
  const budget = flags.budget ?? (own?.cost && own.budget);
  return {
    ...(window !== undefined && { window }),
    ...((metadata || flags.metadata) && { metadata: { ...metadata, ...flags.metadata } }),
    ...(priority !== undefined && { priority }),
    ...(budget && { budget }),
  };
}

function commonFields({ metadata, window, ...flags }: BatchFlags) {
  const extension = {
    ...(flags.model !== undefined && { default_model: flags.model }),
    ...(flags.priority !== undefined && { priority: flags.priority }),
    ...(flags.sample !== undefined && { sample: flags.sample }),
    ...(flags.budget !== undefined && { budget: flags.budget }),
    ...(flags.dedupe !== undefined && { dedupe: flags.dedupe }),
  };
  return {
    completion_window: window ?? DEFAULT_COMPLETION_WINDOW,
    ...(metadata !== undefined && { metadata }),
    ...(Object.keys(extension).length > 0 && { x_batchd: extension }),
  };
}

interface NewBatch {
  readonly endpoint: string;
  readonly completion_window: string;
  readonly x_batchd?: object;
}

const create = (body: NewBatch, { server }: Session): Promise<ShownBatch> =>
  createBatch(server, body, { extensions: extensionsOf(body) });

/** The options that other servers do not have, by the name of their field. */
const OPTIONS: Readonly<Record<string, string>> = {
  default_model: "--model",
  priority: "--priority",
  sample: "--sample",
  budget: "--budget",
  dedupe: "--dedupe",
  from: "retry",
};

/** Names the options of a request that other servers do not have. */
const extensionsOf = ({ x_batchd = {} }: NewBatch): string =>
  Object.keys(x_batchd)
    .map((name) => OPTIONS[name] ?? name)
    .join(", ");

/** Prints the new batch, and waits for it if asked to. */
async function goOn(batch: ShownBatch, flags: SubmitFlags | RetryFlags, session: Session) {
  const isWaiting = flags.wait === true || flags.output !== undefined;
  if (flags.json && !isWaiting) sayJson(batch);
  else if (!flags.json) announce(batch.id, isWaiting && flags.output === "-");
  if (!isWaiting) {
    const watching = session.server.command("watch", batch.id);
    if (isOutputTerminal() && !flags.json) note(`To watch it: ${printable(watching)}`);
    return EXIT.done;
  }
  return waitFor(batch.id, flags, session);
}

/** Prints the id, from which a script goes on; beside the output if that is taken by the results. */
const announce = (id: string, isOutputTaken: boolean) =>
  isOutputTaken ? note(printable(id)) : say(printable(id));
