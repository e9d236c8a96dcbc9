ALTER TABLE "batches" ADD COLUMN "paused_at_ms" bigint;--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "pause_reason" text;