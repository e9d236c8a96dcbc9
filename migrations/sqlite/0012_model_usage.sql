CREATE TABLE `model_usage` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`batch_id` text NOT NULL,
	`project` text NOT NULL,
	`model` text NOT NULL,
	`day` text NOT NULL,
	`price` text NOT NULL,
	`request_count` integer DEFAULT 0 NOT NULL,
	`input_tokens` integer DEFAULT 0 NOT NULL,
	`cached_tokens` integer DEFAULT 0 NOT NULL,
	`output_tokens` integer DEFAULT 0 NOT NULL
);
--> statement-breakpoint
CREATE UNIQUE INDEX `model_usage_by_batch` ON `model_usage` (`batch_id`,`model`,`day`,`price`);--> statement-breakpoint
CREATE INDEX `model_usage_by_day` ON `model_usage` (`day`,`sequence`);--> statement-breakpoint
CREATE INDEX `model_usage_by_project_and_day` ON `model_usage` (`project`,`day`,`sequence`);--> statement-breakpoint
ALTER TABLE `segments` ADD `model_usage` text;