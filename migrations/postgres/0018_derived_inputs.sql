ALTER TABLE "batches" ADD COLUMN "is_input_pending" boolean;--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "source_template" text;--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "is_deduplicated" boolean;--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "duplicate_count" bigint;--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "first_duplicate_line" bigint;--> statement-breakpoint
CREATE INDEX "batches_with_input" ON "batches" USING btree ("project","sequence") WHERE status in ('validating') and stop_reason is null and is_input_pending is not true;--> statement-breakpoint
CREATE INDEX "batches_to_derive" ON "batches" USING btree ("project","sequence") WHERE status in ('validating') and stop_reason is null and is_input_pending;