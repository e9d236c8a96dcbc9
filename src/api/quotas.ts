/** Turns the refusals of the store for a quota into errors that name it. */
import { PublicError } from "../errors.ts";
import { QuotaExceeded } from "../store/quotas.ts";

/** Runs a commit of a project. */
export async function withinQuotas<T>(project: string, commit: () => Promise<T>): Promise<T> {
  try {
    return await commit();
  } catch (cause) {
    if (!(cause instanceof QuotaExceeded)) throw cause;
    const { quota, limit } = cause;
    throw new PublicError(
      "quota_exceeded",
      `You exceeded the quota ${quota} of the project ${project}. Limit: ${limit.toLocaleString("en-US")}. Delete what you do not need any more, wait for batches to end, or ask the operator of this server for more.`,
      { cause },
    );
  }
}
