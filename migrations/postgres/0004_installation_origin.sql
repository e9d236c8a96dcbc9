ALTER TABLE "installation" ADD COLUMN "origin_id" text;--> statement-breakpoint
ALTER TABLE "installation" ADD COLUMN "copied_at_ms" bigint;