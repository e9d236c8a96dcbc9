CREATE TABLE `batch_deliveries` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`id` text NOT NULL,
	`batch_id` text NOT NULL,
	`location` text,
	`s3` text,
	`destination` text NOT NULL,
	`path` text,
	`format` text NOT NULL,
	`status` text NOT NULL,
	`output_file_id` text,
	`error_file_id` text,
	`credentials` text,
	`progress` text,
	`attempt_count` integer DEFAULT 0 NOT NULL,
	`error` text,
	`address` text,
	`created_at_ms` integer NOT NULL,
	`due_at_ms` integer,
	`next_attempt_at_ms` integer,
	`ended_at_ms` integer,
	`lease_owner` text,
	`lease_expires_at_ms` integer,
	`lease_epoch` integer DEFAULT 0 NOT NULL,
	FOREIGN KEY (`batch_id`) REFERENCES `batches`(`id`) ON UPDATE no action ON DELETE cascade,
	CONSTRAINT "delivery_status_is_known" CHECK(status in ('pending', 'delivered', 'failed')),
	CONSTRAINT "delivery_has_one_place" CHECK((location is null) = (s3 is not null)),
	CONSTRAINT "ended_delivery_has_time" CHECK((status in ('pending')) = (ended_at_ms is null)),
	CONSTRAINT "ended_delivery_is_not_due" CHECK(status in ('pending') or next_attempt_at_ms is null),
	CONSTRAINT "due_delivery_has_time" CHECK(next_attempt_at_ms is null or due_at_ms is not null),
	CONSTRAINT "ended_delivery_has_no_credentials" CHECK(status in ('pending') or credentials is null),
	CONSTRAINT "delivered_has_address" CHECK((status in ('delivered')) = (address is not null)),
	CONSTRAINT "failed_delivery_has_error" CHECK(not (status in ('failed')) or error is not null),
	CONSTRAINT "batch_delivery_lease_has_owner_and_expiry" CHECK((lease_owner is null) = (lease_expires_at_ms is null)),
	CONSTRAINT "ended_delivery_has_no_lease" CHECK(status in ('pending') or lease_owner is null)
);
--> statement-breakpoint
CREATE UNIQUE INDEX `batch_deliveries_id` ON `batch_deliveries` (`id`);--> statement-breakpoint
CREATE INDEX `batch_deliveries_by_batch` ON `batch_deliveries` (`batch_id`,`sequence`);--> statement-breakpoint
CREATE UNIQUE INDEX `one_open_delivery_for_each_place` ON `batch_deliveries` (`batch_id`,`destination`) WHERE status in ('pending');--> statement-breakpoint
CREATE INDEX `batch_deliveries_due` ON `batch_deliveries` (`next_attempt_at_ms`,`sequence`) WHERE next_attempt_at_ms is not null;--> statement-breakpoint
CREATE INDEX `batch_deliveries_waiting` ON `batch_deliveries` (`batch_id`) WHERE status in ('pending') and next_attempt_at_ms is null;--> statement-breakpoint
CREATE INDEX `batch_deliveries_by_output` ON `batch_deliveries` (`output_file_id`) WHERE status in ('pending');--> statement-breakpoint
CREATE INDEX `batch_deliveries_by_error` ON `batch_deliveries` (`error_file_id`) WHERE status in ('pending');