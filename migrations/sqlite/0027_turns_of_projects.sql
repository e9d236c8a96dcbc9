DROP INDEX `deliveries_due`;--> statement-breakpoint
ALTER TABLE `deliveries` ADD `project` text DEFAULT '' NOT NULL;--> statement-breakpoint
UPDATE `deliveries` SET `project` = (SELECT `project` FROM `batches` WHERE `id` = `batch_id`);--> statement-breakpoint
CREATE INDEX `deliveries_by_batch` ON `deliveries` (`batch_id`);--> statement-breakpoint
CREATE INDEX `deliveries_by_webhook` ON `deliveries` (`webhook`,`next_attempt_at_ms`,`sequence`);--> statement-breakpoint
CREATE INDEX `deliveries_by_project` ON `deliveries` (`webhook`,`project`,`next_attempt_at_ms`,`sequence`);--> statement-breakpoint
CREATE INDEX `deliveries_claimed` ON `deliveries` (`webhook`,`lease_expires_at_ms`) WHERE lease_expires_at_ms is not null;--> statement-breakpoint
DROP INDEX `batch_deliveries_due`;--> statement-breakpoint
ALTER TABLE `batch_deliveries` ADD `project` text DEFAULT '' NOT NULL;--> statement-breakpoint
UPDATE `batch_deliveries` SET `project` = (SELECT `project` FROM `batches` WHERE `id` = `batch_id`);--> statement-breakpoint
CREATE INDEX `batch_deliveries_due` ON `batch_deliveries` (`next_attempt_at_ms`,`sequence`,`lease_expires_at_ms`,`destination`,`project`,`location`) WHERE next_attempt_at_ms is not null;--> statement-breakpoint
CREATE INDEX `batches_open_by_project` ON `batches` (`project`,`input_file_id`) WHERE status in ('validating', 'in_progress', 'finalizing', 'cancelling');