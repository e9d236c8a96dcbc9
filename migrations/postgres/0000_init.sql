CREATE TABLE "batches" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "batches_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"id" text NOT NULL,
	"project" text NOT NULL,
	"endpoint" text NOT NULL,
	"input_file_id" text NOT NULL,
	"completion_window" text DEFAULT '24h' NOT NULL,
	"status" text NOT NULL,
	"stop_reason" text,
	"model" text,
	"faults" json,
	"output_file_id" text,
	"error_file_id" text,
	"created_at_ms" bigint NOT NULL,
	"expires_at_ms" bigint NOT NULL,
	"in_progress_at_ms" bigint,
	"finalizing_at_ms" bigint,
	"completed_at_ms" bigint,
	"failed_at_ms" bigint,
	"expired_at_ms" bigint,
	"cancelling_at_ms" bigint,
	"cancelled_at_ms" bigint,
	"total_count" bigint DEFAULT 0 NOT NULL,
	"completed_count" bigint DEFAULT 0 NOT NULL,
	"failed_count" bigint DEFAULT 0 NOT NULL,
	"input_tokens" bigint DEFAULT 0 NOT NULL,
	"cached_tokens" bigint DEFAULT 0 NOT NULL,
	"output_tokens" bigint DEFAULT 0 NOT NULL,
	"reasoning_tokens" bigint DEFAULT 0 NOT NULL,
	"total_tokens" bigint DEFAULT 0 NOT NULL,
	"metadata" json,
	"output_expires_after_seconds" bigint,
	"priority" integer DEFAULT 0 NOT NULL,
	"default_model" text,
	"traceparent" text,
	"has_chunks" boolean DEFAULT false NOT NULL,
	"failure_count" bigint DEFAULT 0 NOT NULL,
	"lease_owner" text,
	"lease_expires_at_ms" bigint,
	"lease_epoch" bigint DEFAULT 0 NOT NULL,
	CONSTRAINT "batches_id" UNIQUE("id"),
	CONSTRAINT "status_is_known" CHECK (status in ('validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling', 'cancelled')),
	CONSTRAINT "stop_reason_is_known" CHECK (stop_reason is null or stop_reason in ('cancelled', 'expired')),
	CONSTRAINT "final_status_has_final_time" CHECK ((status in ('failed')) = (failed_at_ms is not null) and (status in ('completed')) = (completed_at_ms is not null) and (status in ('expired')) = (expired_at_ms is not null) and (status in ('cancelled')) = (cancelled_at_ms is not null)),
	CONSTRAINT "started_batch_has_start_time" CHECK (not (status in ('in_progress', 'finalizing', 'completed')) or in_progress_at_ms is not null),
	CONSTRAINT "finalizing_batch_has_finalizing_time" CHECK (not (status in ('finalizing', 'completed')) or finalizing_at_ms is not null),
	CONSTRAINT "cancelled_batch_has_reason_and_time" CHECK ((status in ('cancelling', 'cancelled')) = (stop_reason is not distinct from 'cancelled') and (stop_reason is not distinct from 'cancelled') = (cancelling_at_ms is not null)),
	CONSTRAINT "expired_batch_has_reason" CHECK (not (status in ('expired')) or stop_reason is not distinct from 'expired'),
	CONSTRAINT "done_lines_within_total" CHECK (least(completed_count, failed_count) >= 0 and completed_count + failed_count <= total_count),
	CONSTRAINT "usage_not_negative" CHECK (least(input_tokens, cached_tokens, output_tokens, reasoning_tokens, total_tokens) >= 0),
	CONSTRAINT "batch_lease_has_owner_and_expiry" CHECK ((lease_owner is null) = (lease_expires_at_ms is null)),
	CONSTRAINT "final_batch_has_no_lease" CHECK (not (status in ('failed', 'completed', 'expired', 'cancelled')) or lease_owner is null)
);
--> statement-breakpoint
CREATE TABLE "blob_intents" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "blob_intents_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"blob_key" text NOT NULL,
	"expires_at_ms" bigint NOT NULL,
	CONSTRAINT "blob_intents_blob_key" UNIQUE("blob_key")
);
--> statement-breakpoint
CREATE TABLE "chunks" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "chunks_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"batch_id" text NOT NULL,
	"number" integer NOT NULL,
	"model" text NOT NULL,
	"line_count" bigint NOT NULL,
	"extents" json NOT NULL,
	"closed_at_ms" bigint,
	"failure_count" bigint DEFAULT 0 NOT NULL,
	"lease_owner" text,
	"lease_expires_at_ms" bigint,
	"lease_epoch" bigint DEFAULT 0 NOT NULL,
	CONSTRAINT "chunks_batch_id_number" UNIQUE("batch_id","number"),
	CONSTRAINT "chunk_has_lines" CHECK (line_count > 0),
	CONSTRAINT "chunk_lease_has_owner_and_expiry" CHECK ((lease_owner is null) = (lease_expires_at_ms is null)),
	CONSTRAINT "closed_chunk_has_no_lease" CHECK (closed_at_ms is null or lease_owner is null)
);
--> statement-breakpoint
CREATE TABLE "deliveries" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "deliveries_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"webhook_id" text NOT NULL,
	"event_id" text NOT NULL,
	"webhook" text NOT NULL,
	"batch_id" text NOT NULL,
	"status" text NOT NULL,
	"created_at_ms" bigint NOT NULL,
	"next_attempt_at_ms" bigint NOT NULL,
	"attempt_count" bigint DEFAULT 0 NOT NULL,
	"lease_owner" text,
	"lease_expires_at_ms" bigint,
	CONSTRAINT "deliveries_webhook_id" UNIQUE("webhook_id"),
	CONSTRAINT "delivery_tells_final_status" CHECK (status in ('failed', 'completed', 'expired', 'cancelled')),
	CONSTRAINT "delivery_lease_has_owner_and_expiry" CHECK ((lease_owner is null) = (lease_expires_at_ms is null))
);
--> statement-breakpoint
CREATE TABLE "files" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "files_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"id" text NOT NULL,
	"project" text NOT NULL,
	"purpose" text NOT NULL,
	"filename" text NOT NULL,
	"bytes" bigint NOT NULL,
	"sha256" text NOT NULL,
	"blob_key" text NOT NULL,
	"created_at_ms" bigint NOT NULL,
	"expires_at_ms" bigint,
	"deleted_at_ms" bigint,
	"traceparent" text,
	CONSTRAINT "files_id" UNIQUE("id"),
	CONSTRAINT "files_blob_key" UNIQUE("blob_key"),
	CONSTRAINT "file_bytes_not_negative" CHECK (bytes >= 0)
);
--> statement-breakpoint
CREATE TABLE "idempotency_keys" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "idempotency_keys_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"project" text NOT NULL,
	"key" text NOT NULL,
	"created_at_ms" bigint NOT NULL,
	"fingerprint" text,
	"answer" text,
	"lease_owner" text,
	"lease_expires_at_ms" bigint,
	CONSTRAINT "idempotency_keys_project_key" UNIQUE("project","key"),
	CONSTRAINT "key_is_in_progress_or_answered" CHECK ((answer is null) = (lease_owner is not null) and (answer is null) = (fingerprint is null)),
	CONSTRAINT "key_lease_has_owner_and_expiry" CHECK ((lease_owner is null) = (lease_expires_at_ms is null))
);
--> statement-breakpoint
CREATE TABLE "installation" (
	"is_only" boolean PRIMARY KEY DEFAULT true NOT NULL,
	"id" text NOT NULL,
	"blob_place" text,
	CONSTRAINT "installation_has_one_row" CHECK (is_only)
);
--> statement-breakpoint
CREATE TABLE "segments" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "segments_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"batch_id" text NOT NULL,
	"chunk_number" integer NOT NULL,
	"blob_key" text NOT NULL,
	"bytes" bigint NOT NULL,
	"crc32" bigint NOT NULL,
	"completed_count" bigint DEFAULT 0 NOT NULL,
	"failed_count" bigint DEFAULT 0 NOT NULL,
	"input_tokens" bigint DEFAULT 0 NOT NULL,
	"cached_tokens" bigint DEFAULT 0 NOT NULL,
	"output_tokens" bigint DEFAULT 0 NOT NULL,
	"reasoning_tokens" bigint DEFAULT 0 NOT NULL,
	"total_tokens" bigint DEFAULT 0 NOT NULL,
	CONSTRAINT "segments_blob_key" UNIQUE("blob_key"),
	CONSTRAINT "segment_bytes_not_negative" CHECK (bytes >= 0)
);
--> statement-breakpoint
CREATE TABLE "upload_parts" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "upload_parts_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"id" text NOT NULL,
	"upload_id" text NOT NULL,
	"bytes" bigint NOT NULL,
	"blob_key" text NOT NULL,
	"created_at_ms" bigint NOT NULL,
	CONSTRAINT "upload_parts_id" UNIQUE("id"),
	CONSTRAINT "upload_parts_blob_key" UNIQUE("blob_key"),
	CONSTRAINT "part_bytes_not_negative" CHECK (bytes >= 0)
);
--> statement-breakpoint
CREATE TABLE "uploads" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "uploads_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"id" text NOT NULL,
	"project" text NOT NULL,
	"filename" text NOT NULL,
	"purpose" text NOT NULL,
	"bytes" bigint NOT NULL,
	"mime_type" text NOT NULL,
	"status" text NOT NULL,
	"created_at_ms" bigint NOT NULL,
	"expires_at_ms" bigint NOT NULL,
	"file_expires_after_seconds" bigint,
	"file_id" text,
	"has_parts" boolean DEFAULT false NOT NULL,
	CONSTRAINT "uploads_id" UNIQUE("id"),
	CONSTRAINT "upload_status_is_known" CHECK (status in ('pending', 'completed', 'cancelled', 'expired')),
	CONSTRAINT "completed_upload_has_file" CHECK ((status in ('completed')) = (file_id is not null)),
	CONSTRAINT "upload_bytes_not_negative" CHECK (bytes >= 0)
);
--> statement-breakpoint
ALTER TABLE "chunks" ADD CONSTRAINT "chunks_batch_id_batches_id_fk" FOREIGN KEY ("batch_id") REFERENCES "public"."batches"("id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "deliveries" ADD CONSTRAINT "deliveries_batch_id_batches_id_fk" FOREIGN KEY ("batch_id") REFERENCES "public"."batches"("id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "segments" ADD CONSTRAINT "segment_belongs_to_chunk" FOREIGN KEY ("batch_id","chunk_number") REFERENCES "public"."chunks"("batch_id","number") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "upload_parts" ADD CONSTRAINT "upload_parts_upload_id_uploads_id_fk" FOREIGN KEY ("upload_id") REFERENCES "public"."uploads"("id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
CREATE INDEX "batches_listed" ON "batches" USING btree ("project","sequence");--> statement-breakpoint
CREATE INDEX "batches_to_validate" ON "batches" USING btree ("project","sequence") WHERE status in ('validating') and stop_reason is null;--> statement-breakpoint
CREATE INDEX "batches_that_may_expire" ON "batches" USING btree ("expires_at_ms") WHERE status in ('validating', 'in_progress') and stop_reason is null;--> statement-breakpoint
CREATE INDEX "batches_ending" ON "batches" USING btree ("sequence") WHERE status in ('validating', 'in_progress', 'finalizing', 'cancelling') and (stop_reason is not null or status in ('finalizing'));--> statement-breakpoint
CREATE INDEX "batches_to_tidy" ON "batches" USING btree ("sequence") WHERE status in ('failed', 'completed', 'expired', 'cancelled') and has_chunks;--> statement-breakpoint
CREATE INDEX "batches_open_by_input" ON "batches" USING btree ("input_file_id") WHERE status in ('validating', 'in_progress', 'finalizing', 'cancelling');--> statement-breakpoint
CREATE INDEX "blob_intents_by_expiry" ON "blob_intents" USING btree ("expires_at_ms");--> statement-breakpoint
CREATE INDEX "chunks_open_by_batch" ON "chunks" USING btree ("batch_id","model","number") WHERE closed_at_ms is null;--> statement-breakpoint
CREATE INDEX "deliveries_due" ON "deliveries" USING btree ("next_attempt_at_ms","sequence");--> statement-breakpoint
CREATE INDEX "files_listed" ON "files" USING btree ("project","sequence") WHERE deleted_at_ms is null;--> statement-breakpoint
CREATE INDEX "files_listed_by_purpose" ON "files" USING btree ("project","purpose","sequence") WHERE deleted_at_ms is null;--> statement-breakpoint
CREATE INDEX "files_deleted" ON "files" USING btree ("sequence") WHERE deleted_at_ms is not null;--> statement-breakpoint
CREATE INDEX "files_that_may_expire" ON "files" USING btree ("expires_at_ms") WHERE deleted_at_ms is null and expires_at_ms is not null;--> statement-breakpoint
CREATE INDEX "idempotency_keys_by_age" ON "idempotency_keys" USING btree ("created_at_ms");--> statement-breakpoint
CREATE INDEX "idempotency_keys_in_progress" ON "idempotency_keys" USING btree ("sequence") WHERE answer is null;--> statement-breakpoint
CREATE INDEX "segments_by_chunk" ON "segments" USING btree ("batch_id","chunk_number","sequence");--> statement-breakpoint
CREATE INDEX "upload_parts_by_upload" ON "upload_parts" USING btree ("upload_id","sequence");--> statement-breakpoint
CREATE INDEX "uploads_pending" ON "uploads" USING btree ("expires_at_ms") WHERE status in ('pending');--> statement-breakpoint
CREATE INDEX "uploads_to_tidy" ON "uploads" USING btree ("sequence") WHERE not (status in ('pending')) and has_parts;