CREATE TABLE `batches` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`id` text NOT NULL,
	`project` text NOT NULL,
	`endpoint` text NOT NULL,
	`input_file_id` text NOT NULL,
	`status` text NOT NULL,
	`stop_reason` text,
	`model` text,
	`faults` text,
	`output_file_id` text,
	`error_file_id` text,
	`created_at_ms` integer NOT NULL,
	`expires_at_ms` integer NOT NULL,
	`in_progress_at_ms` integer,
	`finalizing_at_ms` integer,
	`completed_at_ms` integer,
	`failed_at_ms` integer,
	`expired_at_ms` integer,
	`cancelling_at_ms` integer,
	`cancelled_at_ms` integer,
	`total_count` integer DEFAULT 0 NOT NULL,
	`completed_count` integer DEFAULT 0 NOT NULL,
	`failed_count` integer DEFAULT 0 NOT NULL,
	`input_tokens` integer DEFAULT 0 NOT NULL,
	`cached_tokens` integer DEFAULT 0 NOT NULL,
	`output_tokens` integer DEFAULT 0 NOT NULL,
	`reasoning_tokens` integer DEFAULT 0 NOT NULL,
	`total_tokens` integer DEFAULT 0 NOT NULL,
	`metadata` text,
	`output_expires_after_seconds` integer,
	`priority` integer DEFAULT 0 NOT NULL,
	`default_model` text,
	`traceparent` text,
	`has_chunks` integer DEFAULT false NOT NULL,
	`lease_owner` text,
	`lease_expires_at_ms` integer,
	`lease_epoch` integer DEFAULT 0 NOT NULL,
	CONSTRAINT "status_is_known" CHECK(status in ('validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling', 'cancelled')),
	CONSTRAINT "stop_reason_is_known" CHECK(stop_reason is null or stop_reason in ('cancelled', 'expired')),
	CONSTRAINT "final_status_has_final_time" CHECK((status in ('failed')) = (failed_at_ms is not null) and (status in ('completed')) = (completed_at_ms is not null) and (status in ('expired')) = (expired_at_ms is not null) and (status in ('cancelled')) = (cancelled_at_ms is not null)),
	CONSTRAINT "started_batch_has_start_time" CHECK(not (status in ('in_progress', 'finalizing', 'completed')) or in_progress_at_ms is not null),
	CONSTRAINT "finalizing_batch_has_finalizing_time" CHECK(not (status in ('finalizing', 'completed')) or finalizing_at_ms is not null),
	CONSTRAINT "cancelled_batch_has_reason_and_time" CHECK((status in ('cancelling', 'cancelled')) = (stop_reason is 'cancelled') and (stop_reason is 'cancelled') = (cancelling_at_ms is not null)),
	CONSTRAINT "expired_batch_has_reason" CHECK(not (status in ('expired')) or stop_reason is 'expired'),
	CONSTRAINT "done_lines_within_total" CHECK(min(completed_count, failed_count) >= 0 and completed_count + failed_count <= total_count),
	CONSTRAINT "usage_not_negative" CHECK(min(input_tokens, cached_tokens, output_tokens, reasoning_tokens, total_tokens) >= 0),
	CONSTRAINT "batch_lease_has_owner_and_expiry" CHECK((lease_owner is null) = (lease_expires_at_ms is null)),
	CONSTRAINT "final_batch_has_no_lease" CHECK(not (status in ('failed', 'completed', 'expired', 'cancelled')) or lease_owner is null)
);
--> statement-breakpoint
CREATE UNIQUE INDEX `batches_id` ON `batches` (`id`);--> statement-breakpoint
CREATE INDEX `batches_listed` ON `batches` (`project`,`sequence`);--> statement-breakpoint
CREATE INDEX `batches_to_validate` ON `batches` (`project`,`sequence`) WHERE status in ('validating') and stop_reason is null;--> statement-breakpoint
CREATE INDEX `batches_that_may_expire` ON `batches` (`expires_at_ms`) WHERE status in ('validating', 'in_progress') and stop_reason is null;--> statement-breakpoint
CREATE INDEX `batches_ending` ON `batches` (`sequence`) WHERE status in ('validating', 'in_progress', 'finalizing', 'cancelling') and (stop_reason is not null or status in ('finalizing'));--> statement-breakpoint
CREATE INDEX `batches_to_tidy` ON `batches` (`sequence`) WHERE status in ('failed', 'completed', 'expired', 'cancelled') and has_chunks = 1;--> statement-breakpoint
CREATE INDEX `batches_open_by_input` ON `batches` (`input_file_id`) WHERE status in ('validating', 'in_progress', 'finalizing', 'cancelling');--> statement-breakpoint
CREATE TABLE `chunks` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`batch_id` text NOT NULL,
	`number` integer NOT NULL,
	`route` text NOT NULL,
	`line_count` integer NOT NULL,
	`extents` text NOT NULL,
	`closed_at_ms` integer,
	`lease_owner` text,
	`lease_expires_at_ms` integer,
	`lease_epoch` integer DEFAULT 0 NOT NULL,
	FOREIGN KEY (`batch_id`) REFERENCES `batches`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "chunk_has_lines" CHECK(line_count > 0),
	CONSTRAINT "chunk_lease_has_owner_and_expiry" CHECK((lease_owner is null) = (lease_expires_at_ms is null)),
	CONSTRAINT "closed_chunk_has_no_lease" CHECK(closed_at_ms is null or lease_owner is null)
);
--> statement-breakpoint
CREATE UNIQUE INDEX `chunks_batch_id_number` ON `chunks` (`batch_id`,`number`);--> statement-breakpoint
CREATE INDEX `chunks_open_by_batch` ON `chunks` (`batch_id`,`route`,`number`,`lease_expires_at_ms`,`line_count`) WHERE closed_at_ms is null;--> statement-breakpoint
CREATE TABLE `deliveries` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`webhook_id` text NOT NULL,
	`event_id` text NOT NULL,
	`webhook` text NOT NULL,
	`batch_id` text NOT NULL,
	`status` text NOT NULL,
	`created_at_ms` integer NOT NULL,
	`next_attempt_at_ms` integer NOT NULL,
	`attempt_count` integer DEFAULT 0 NOT NULL,
	`lease_owner` text,
	`lease_expires_at_ms` integer,
	FOREIGN KEY (`batch_id`) REFERENCES `batches`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "delivery_tells_final_status" CHECK(status in ('failed', 'completed', 'expired', 'cancelled')),
	CONSTRAINT "delivery_lease_has_owner_and_expiry" CHECK((lease_owner is null) = (lease_expires_at_ms is null))
);
--> statement-breakpoint
CREATE UNIQUE INDEX `deliveries_webhook_id` ON `deliveries` (`webhook_id`);--> statement-breakpoint
CREATE INDEX `deliveries_due` ON `deliveries` (`next_attempt_at_ms`,`sequence`,`lease_expires_at_ms`,`webhook`);--> statement-breakpoint
CREATE TABLE `files` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`id` text NOT NULL,
	`project` text NOT NULL,
	`purpose` text NOT NULL,
	`filename` text NOT NULL,
	`bytes` integer NOT NULL,
	`sha256` text NOT NULL,
	`blob_key` text NOT NULL,
	`created_at_ms` integer NOT NULL,
	`expires_at_ms` integer,
	`deleted_at_ms` integer,
	`traceparent` text,
	CONSTRAINT "file_bytes_not_negative" CHECK(bytes >= 0)
);
--> statement-breakpoint
CREATE UNIQUE INDEX `files_id` ON `files` (`id`);--> statement-breakpoint
CREATE UNIQUE INDEX `files_blob_key` ON `files` (`blob_key`);--> statement-breakpoint
CREATE INDEX `files_listed` ON `files` (`project`,`sequence`) WHERE deleted_at_ms is null;--> statement-breakpoint
CREATE INDEX `files_listed_by_purpose` ON `files` (`project`,`purpose`,`sequence`) WHERE deleted_at_ms is null;--> statement-breakpoint
CREATE INDEX `files_deleted` ON `files` (`sequence`) WHERE deleted_at_ms is not null;--> statement-breakpoint
CREATE INDEX `files_that_may_expire` ON `files` (`expires_at_ms`) WHERE deleted_at_ms is null and expires_at_ms is not null;--> statement-breakpoint
CREATE TABLE `idempotency_keys` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`project` text NOT NULL,
	`key` text NOT NULL,
	`created_at_ms` integer NOT NULL,
	`fingerprint` text,
	`answer` text,
	`lease_owner` text,
	`lease_expires_at_ms` integer,
	CONSTRAINT "key_is_in_progress_or_answered" CHECK((answer is null) = (lease_owner is not null) and (answer is null) = (fingerprint is null)),
	CONSTRAINT "key_lease_has_owner_and_expiry" CHECK((lease_owner is null) = (lease_expires_at_ms is null))
);
--> statement-breakpoint
CREATE UNIQUE INDEX `idempotency_keys_project_key` ON `idempotency_keys` (`project`,`key`);--> statement-breakpoint
CREATE INDEX `idempotency_keys_by_age` ON `idempotency_keys` (`created_at_ms`);--> statement-breakpoint
CREATE INDEX `idempotency_keys_in_progress` ON `idempotency_keys` (`sequence`) WHERE answer is null;--> statement-breakpoint
CREATE TABLE `segments` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`batch_id` text NOT NULL,
	`chunk_number` integer NOT NULL,
	`blob_key` text NOT NULL,
	`bytes` integer NOT NULL,
	FOREIGN KEY (`batch_id`,`chunk_number`) REFERENCES `chunks`(`batch_id`,`number`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "segment_bytes_not_negative" CHECK(bytes >= 0)
);
--> statement-breakpoint
CREATE UNIQUE INDEX `segments_blob_key` ON `segments` (`blob_key`);--> statement-breakpoint
CREATE INDEX `segments_by_chunk` ON `segments` (`batch_id`,`chunk_number`,`sequence`);--> statement-breakpoint
CREATE TABLE `upload_parts` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`id` text NOT NULL,
	`upload_id` text NOT NULL,
	`bytes` integer NOT NULL,
	`blob_key` text NOT NULL,
	`created_at_ms` integer NOT NULL,
	FOREIGN KEY (`upload_id`) REFERENCES `uploads`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "part_bytes_not_negative" CHECK(bytes >= 0)
);
--> statement-breakpoint
CREATE UNIQUE INDEX `upload_parts_id` ON `upload_parts` (`id`);--> statement-breakpoint
CREATE UNIQUE INDEX `upload_parts_blob_key` ON `upload_parts` (`blob_key`);--> statement-breakpoint
CREATE INDEX `upload_parts_by_upload` ON `upload_parts` (`upload_id`,`sequence`);--> statement-breakpoint
CREATE TABLE `uploads` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`id` text NOT NULL,
	`project` text NOT NULL,
	`filename` text NOT NULL,
	`purpose` text NOT NULL,
	`bytes` integer NOT NULL,
	`mime_type` text NOT NULL,
	`status` text NOT NULL,
	`created_at_ms` integer NOT NULL,
	`expires_at_ms` integer NOT NULL,
	`file_expires_after_seconds` integer,
	`file_id` text,
	`has_parts` integer DEFAULT false NOT NULL,
	CONSTRAINT "upload_status_is_known" CHECK(status in ('pending', 'completed', 'cancelled', 'expired')),
	CONSTRAINT "completed_upload_has_file" CHECK((status in ('completed')) = (file_id is not null)),
	CONSTRAINT "upload_bytes_not_negative" CHECK(bytes >= 0)
);
--> statement-breakpoint
CREATE UNIQUE INDEX `uploads_id` ON `uploads` (`id`);--> statement-breakpoint
CREATE INDEX `uploads_pending` ON `uploads` (`expires_at_ms`) WHERE status in ('pending');--> statement-breakpoint
CREATE INDEX `uploads_to_tidy` ON `uploads` (`sequence`) WHERE not (status in ('pending')) and has_parts = 1;