ALTER TABLE "batches" ADD COLUMN "deleted_at_ms" bigint;--> statement-breakpoint
CREATE INDEX "batches_deleted" ON "batches" USING btree ("sequence") WHERE deleted_at_ms is not null;