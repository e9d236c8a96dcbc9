/**
 * What a batch leaves for its run record: facts on its input, found when it is validated, and on its results, found when
 * they are written. Both are kept with the batch, because its files may be deleted before the record is asked for.
 */

/** How many lines have a name, such as the one of a model. */
export interface NamedLines {
  readonly name: string;
  readonly lines: number;
}

/** Names with the number of their lines, the most frequent first, within a limit. */
export interface NameCounts {
  readonly names: readonly NamedLines[];
  /** The lines with names that the list has no room for. */
  readonly others: number;
}

/** The place outside that a file was copied from. */
export interface CopiedFrom {
  readonly location: string;
  readonly path: string;
  /** The commit, the version or the tag of the content at its source; null where the source has none. */
  readonly revision: string | null;
}

export interface FileSummary {
  readonly bytes: number;
  readonly sha256: string;
  readonly lines: number;
}

/** The parameters of request bodies: everything in them but the model and the content. */
export interface ParameterSummary {
  /** The values that all lines have. */
  readonly common: Readonly<Record<string, unknown>>;
  /** The values that all lines have, and that are too long to be repeated. */
  readonly large: readonly {
    readonly name: string;
    readonly bytes: number;
    readonly sha256: string;
  }[];
  /** The names of parameters that differ between lines, or that some lines do not have; dots lead to nested ones. */
  readonly varying: readonly string[];
  /** The number of parameters that were not compared, because there were too many of them. */
  readonly left_out: number;
}

export interface InputSummary extends FileSummary {
  readonly filename: string;
  readonly copiedFrom: CopiedFrom | null;
  readonly models: NameCounts;
  readonly parameters: ParameterSummary;
}

export interface ResultSummary {
  readonly output: FileSummary | null;
  readonly error: FileSummary | null;
  /** The models that answers name. */
  readonly models: NameCounts;
  /** The values of `system_fingerprint` in answers. */
  readonly fingerprints: NameCounts;
  /** The upstreams that were configured for the models of the batch when it ended. */
  readonly upstreams: readonly string[];
  readonly serverVersion: string;
}
