ALTER TABLE "batches" ADD COLUMN "sample_line_count" integer;--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "sample_chunk_count" integer;--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "source_batch_id" text;--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "source_lines" text;--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "is_merged" boolean DEFAULT false NOT NULL;--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "merged_input_file_id" text;--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "merged_output_file_id" text;--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "merged_error_file_id" text;--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "line_marks" json;--> statement-breakpoint
CREATE INDEX "batches_open_by_merged_output" ON "batches" USING btree ("merged_output_file_id") WHERE status in ('validating', 'in_progress', 'finalizing', 'cancelling') and is_merged;--> statement-breakpoint
CREATE INDEX "batches_open_by_merged_error" ON "batches" USING btree ("merged_error_file_id") WHERE status in ('validating', 'in_progress', 'finalizing', 'cancelling') and is_merged;--> statement-breakpoint
CREATE INDEX "batches_by_source" ON "batches" USING btree ("source_batch_id","sequence") WHERE source_batch_id is not null;