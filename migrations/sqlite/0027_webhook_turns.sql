DROP INDEX `deliveries_due`;--> statement-breakpoint
ALTER TABLE `deliveries` ADD `project` text DEFAULT '' NOT NULL;--> statement-breakpoint
CREATE INDEX `deliveries_by_batch` ON `deliveries` (`batch_id`);--> statement-breakpoint
CREATE INDEX `deliveries_by_webhook` ON `deliveries` (`webhook`,`next_attempt_at_ms`,`sequence`);--> statement-breakpoint
CREATE INDEX `deliveries_by_project` ON `deliveries` (`webhook`,`project`,`next_attempt_at_ms`,`sequence`);--> statement-breakpoint
CREATE INDEX `deliveries_claimed` ON `deliveries` (`webhook`,`lease_expires_at_ms`) WHERE lease_expires_at_ms is not null;