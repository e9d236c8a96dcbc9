CREATE TABLE `batch_progress` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`batch_id` text NOT NULL,
	`samples` text NOT NULL,
	FOREIGN KEY (`batch_id`) REFERENCES `batches`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE UNIQUE INDEX `batch_progress_batch_id` ON `batch_progress` (`batch_id`);--> statement-breakpoint
ALTER TABLE `batches` ADD `latency_counts` text;--> statement-breakpoint
ALTER TABLE `segments` ADD `latency_counts` text;