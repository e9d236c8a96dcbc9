ALTER TABLE "batches" ADD COLUMN "failure_groups" json;--> statement-breakpoint
ALTER TABLE "segments" ADD COLUMN "failure_groups" json;