CREATE TABLE `batch_runs` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`batch_id` text NOT NULL,
	`input` text,
	`results` text,
	`record` text,
	FOREIGN KEY (`batch_id`) REFERENCES `batches`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE UNIQUE INDEX `batch_runs_batch_id` ON `batch_runs` (`batch_id`);--> statement-breakpoint
ALTER TABLE `files` ADD `copied_from` text;