/** The columns that several tables have. */
import { integer, text } from "./drizzle.ts";

export const sequence = () => integer("sequence").primaryKey({ autoIncrement: true });
export const count = (name: string) => integer(name).notNull().default(0);

export const holder = () => ({
  leaseOwner: text("lease_owner"),
  leaseExpiresAtMs: integer("lease_expires_at_ms"),
});
/** The right to write. The epoch outlives the lease, so that a former holder cannot pass for the present one. */
export const lease = () => ({ ...holder(), leaseEpoch: count("lease_epoch") });
