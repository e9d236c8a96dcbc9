/**
 * A request body on its way to a target that wants it a little different: another model name, fields that its
 * line leaves out, fields that the operator insists on. What is not touched stays byte for byte as the client wrote it.
 */

/** JSON texts of values, by the name of their field. */
export type FieldTexts = ReadonlyMap<string, string>;

export interface BodyRules {
  /** What `model` is to say; null leaves it as it is. */
  readonly model: string | null;
  /** Fields for bodies that do not have them. */
  readonly defaults: FieldTexts;
  /** Fields that replace whatever the body says. */
  readonly extra: FieldTexts;
}
