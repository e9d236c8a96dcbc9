/** Says what a process does: it serves the API (`api`), runs batches (`worker`), or does both. */
export const ROLES = ["all", "api", "worker"] as const;
export type Role = (typeof ROLES)[number];
