/** A reason for which a command ends, in words for its user. */
export class CommandFailure extends Error {
  override readonly name = "CommandFailure";
}

export const cannotRead = (path: string, cause: Error): CommandFailure =>
  new CommandFailure(`cannot read ${path}: ${cause.message}`, { cause });
