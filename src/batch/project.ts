/** The rules for a project: what it may ask for, how much of it, and how long its data is kept. */

import type { ProjectSettings } from "../contract/project.ts";
import { firstMatching } from "./name-pattern.ts";
import type { Decimal } from "./price.ts";

/** Null stands for no limit. */
export interface Quotas {
  readonly openBatches: number | null;
  /** The lines of its open batches without an answer. */
  readonly enqueuedLines: number | null;
  /** The input tokens of its open batches, as they were estimated when their lines were checked. */
  readonly enqueuedTokens: number | null;
  readonly files: number | null;
  readonly storedBytes: number | null;
  /** The tokens of the answers of its batches in a day of UTC, with their input. */
  readonly tokensPerDay: number | null;
  /** The cost of its batches in a month of UTC. */
  readonly costPerMonth: Decimal | null;
  readonly requestsPerMinute: number | null;
  readonly interactiveAtOnce: number | null;
}

export interface ProjectRules {
  /** The share of the project where several wait for the same route. */
  readonly weight: number;
  /** The names of models, in which a star stands for any characters. */
  readonly models: readonly string[];
  readonly quotas: Quotas;
  /** The longest lifetime of uploaded files; null leaves it to the client. */
  readonly fileLifetimeSeconds: number | null;
  /** The longest lifetime of results; null leaves it to the client. */
  readonly resultLifetimeSeconds: number | null;
}

export type RulesOf = (project: string) => ProjectRules;

export const allowsModel = ({ models }: ProjectRules, model: string): boolean =>
  firstMatching(models, (pattern) => pattern, model) !== undefined;

/** Returns the shorter of two lifetimes, of which null has no end. */
export function shorter(one: number | null, other: number | null): number | null {
  if (one === null || other === null) return one ?? other;
  return Math.min(one, other);
}

type Lifetime = number | null | undefined;

/** The rules as the configuration and the API have them. What is missing has no limit. */
interface RuleSource extends Pick<ProjectSettings, "weight" | "models" | "quotas"> {
  readonly files_expire_after?: Lifetime;
  readonly results_expire_after?: Lifetime;
}

export const rulesFrom = ({ weight, models, quotas, ...lifetimes }: RuleSource): ProjectRules => ({
  weight,
  models,
  quotas: {
    openBatches: quotas.open_batches ?? null,
    enqueuedLines: quotas.enqueued_lines ?? null,
    enqueuedTokens: quotas.enqueued_tokens ?? null,
    files: quotas.files ?? null,
    storedBytes: quotas.stored_bytes ?? null,
    tokensPerDay: quotas.tokens_per_day ?? null,
    costPerMonth: quotas.cost_per_month ?? null,
    requestsPerMinute: quotas.requests_per_minute ?? null,
    interactiveAtOnce: quotas.interactive_at_once ?? null,
  },
  fileLifetimeSeconds: lifetimes.files_expire_after ?? null,
  resultLifetimeSeconds: lifetimes.results_expire_after ?? null,
});
