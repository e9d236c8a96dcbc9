/** A reason for which a command ends, in words for its user. */
export class CommandFailure extends Error {
  override readonly name = "CommandFailure";
}
