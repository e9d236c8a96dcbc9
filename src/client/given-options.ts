/** The options of a batch as words of a command, so that a user who has to give a command again finds all of them in it. */
import { DEFAULT_COMPLETION_WINDOW } from "../contract/window.ts";
import { usualFormat } from "./options.ts";
import type { WaitFlags } from "./wait.ts";

/** The options of a batch, as people write them. */
export interface BatchFlags extends WaitFlags {
  readonly metadata?: Readonly<Record<string, string>>;
  readonly window?: string;
  readonly priority?: number;
  readonly sample?: number;
  readonly budget?: string;
  readonly model?: string;
  readonly dedupe?: boolean;
}

export interface GivenOption {
  /** The field of the request that it sets; null for one that the server does not see. */
  readonly field: string | null;
  readonly words: readonly string[];
}

export function givenOptions(flags: BatchFlags): readonly GivenOption[] {
  const { metadata = {}, window, format } = flags;
  const pairs = Object.entries(metadata).map(([key, value]) => `${key}=${value}`);
  return [
    ...pairs.flatMap((pair) => given("metadata", "--metadata", pair)),
    ...given("completion_window", "--window", unless(window, DEFAULT_COMPLETION_WINDOW)),
    ...given("x_batchd.default_model", "--model", flags.model),
    ...given("x_batchd.priority", "--priority", flags.priority),
    ...given("x_batchd.sample", "--sample", flags.sample),
    ...given("x_batchd.budget", "--budget", flags.budget),
    ...given("x_batchd.dedupe", "--dedupe", flags.dedupe),
    ...given(null, "--output", flags.output),
    ...given(null, "--format", unless(format, usualFormat(flags.output))),
    ...given(null, "--wait", flags.wait),
    ...given(null, "--json", flags.json),
  ];
}

const unless = (value: string | undefined, usual: string) => (value === usual ? undefined : value);

function given(
  field: string | null,
  name: string,
  value: string | number | boolean | undefined,
): readonly GivenOption[] {
  if (value === undefined || value === false) return [];
  return [{ field, words: value === true ? [name] : [name, String(value)] }];
}

/** Whether a refusal of this parameter is one of the option: of its field, a part of that, or an object that holds it. */
export const isOptionOf = ({ field }: GivenOption, param: string): boolean =>
  field !== null && (`${param}.`.startsWith(`${field}.`) || field.startsWith(`${param}.`));
