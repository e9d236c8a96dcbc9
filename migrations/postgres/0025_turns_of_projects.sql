ALTER TABLE "batch_deliveries" ADD COLUMN "project" text DEFAULT '' NOT NULL;--> statement-breakpoint
ALTER TABLE "deliveries" ADD COLUMN "project" text DEFAULT '' NOT NULL;--> statement-breakpoint
CREATE INDEX "batches_open_by_project" ON "batches" USING btree ("project","input_file_id") WHERE status in ('validating', 'in_progress', 'finalizing', 'cancelling');--> statement-breakpoint
CREATE INDEX "deliveries_by_batch" ON "deliveries" USING btree ("batch_id");--> statement-breakpoint
CREATE INDEX "deliveries_by_webhook" ON "deliveries" USING btree ("webhook","next_attempt_at_ms","sequence");--> statement-breakpoint
CREATE INDEX "deliveries_by_project" ON "deliveries" USING btree ("webhook","project","next_attempt_at_ms","sequence");--> statement-breakpoint
CREATE INDEX "deliveries_claimed" ON "deliveries" USING btree ("webhook","lease_expires_at_ms") WHERE lease_expires_at_ms is not null;