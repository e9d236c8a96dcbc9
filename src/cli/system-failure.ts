/** What commands say of a system or a library that fails. */

/** The code of a database that is away or full. Only its cause says what is missing, such as a right. */
const STORE_AWAY = "STORE_UNAVAILABLE";

/** Returns a sentence for an error of the system or a library; null for any other error. */
export function systemFailure(error: unknown): string | null {
  if (!(error instanceof Error)) return null;
  const { code, message, cause } = error as NodeJS.ErrnoException;
  if (typeof code !== "string") return systemFailure(cause);
  const because = code === STORE_AWAY && cause instanceof Error ? cause.message : "";
  return because === "" ? message : `${message}: ${because}`;
}

/** Returns what a disk says that is full or fails, for which the engine waits, too; null for any other error. */
export const storageTrouble = (error: unknown): string | null =>
  (error as NodeJS.ErrnoException | null)?.code === STORE_AWAY ? systemFailure(error) : null;
