/** The columns that several tables have. */
import { bigint, customType } from "./drizzle.ts";

/** PostgreSQL stores no NUL in a text. A client that sends one gets the sign for an unreadable character back. */
export const text = customType<{ data: string; driverData: string }>({
  dataType: () => "text",
  toDriver: (value) => value.replaceAll("\0", "\ufffd"),
});

export const big = (name: string) => bigint(name, { mode: "number" });
export const sequence = () => big("sequence").primaryKey().generatedAlwaysAsIdentity();
export const count = (name: string) => big(name).notNull().default(0);

/** The sums over the lines with an answer, for a segment and for a batch. */
export const results = () => ({
  completedCount: count("completed_count"),
  failedCount: count("failed_count"),
  inputTokens: count("input_tokens"),
  cachedTokens: count("cached_tokens"),
  outputTokens: count("output_tokens"),
  reasoningTokens: count("reasoning_tokens"),
  totalTokens: count("total_tokens"),
});

export const holder = () => ({
  leaseOwner: text("lease_owner"),
  leaseExpiresAtMs: big("lease_expires_at_ms"),
});
/** The right to write. The epoch outlives the lease, so that a former holder differs from the present one. */
export const lease = () => ({ ...holder(), leaseEpoch: count("lease_epoch") });
