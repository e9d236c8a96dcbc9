CREATE TABLE `usage_sums` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`project` text NOT NULL,
	`day` text NOT NULL,
	`price` text NOT NULL,
	`request_count` integer DEFAULT 0 NOT NULL,
	`input_tokens` integer DEFAULT 0 NOT NULL,
	`cached_tokens` integer DEFAULT 0 NOT NULL,
	`output_tokens` integer DEFAULT 0 NOT NULL
);
--> statement-breakpoint
CREATE UNIQUE INDEX `usage_sums_key` ON `usage_sums` (`project`,`day`,`price`);--> statement-breakpoint
INSERT INTO `usage_sums` (`project`, `day`, `price`, `request_count`, `input_tokens`, `cached_tokens`, `output_tokens`)
SELECT `project`, `day`, `price`, sum(`request_count`), sum(`input_tokens`), sum(`cached_tokens`), sum(`output_tokens`)
FROM `model_usage` GROUP BY `project`, `day`, `price`;
