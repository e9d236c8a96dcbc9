CREATE TABLE `blob_intents` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`blob_key` text NOT NULL,
	`expires_at_ms` integer NOT NULL
);
--> statement-breakpoint
CREATE UNIQUE INDEX `blob_intents_blob_key` ON `blob_intents` (`blob_key`);--> statement-breakpoint
CREATE INDEX `blob_intents_by_expiry` ON `blob_intents` (`expires_at_ms`);--> statement-breakpoint
ALTER TABLE `batches` ADD `failure_count` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `chunks` ADD `failure_count` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `segments` ADD `crc32` integer;--> statement-breakpoint
ALTER TABLE `segments` ADD `completed_count` integer;--> statement-breakpoint
ALTER TABLE `segments` ADD `failed_count` integer;--> statement-breakpoint
ALTER TABLE `segments` ADD `usage` text;