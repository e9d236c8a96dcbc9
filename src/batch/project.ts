/** The rules for a project: what it may ask for, how much of it, and how long its data is kept. */

import { matchesPattern } from "./name-pattern.ts";
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
  models.some((pattern) => matchesPattern(pattern, model));

/** Returns the shorter of two lifetimes, of which null has no end. */
export function shorter(one: number | null, other: number | null): number | null {
  if (one === null || other === null) return one ?? other;
  return Math.min(one, other);
}
