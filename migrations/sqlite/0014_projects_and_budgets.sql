CREATE TABLE `interactive_slots` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`id` text NOT NULL,
	`project` text NOT NULL,
	`expires_at_ms` integer NOT NULL
);
--> statement-breakpoint
CREATE UNIQUE INDEX `interactive_slots_id` ON `interactive_slots` (`id`);--> statement-breakpoint
CREATE INDEX `interactive_slots_by_project` ON `interactive_slots` (`project`,`expires_at_ms`);--> statement-breakpoint
CREATE TABLE `projects` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`name` text NOT NULL,
	`rules` text NOT NULL,
	`created_at_ms` integer NOT NULL,
	`changed_at_ms` integer NOT NULL,
	`deleted_at_ms` integer
);
--> statement-breakpoint
CREATE UNIQUE INDEX `projects_name` ON `projects` (`name`);--> statement-breakpoint
CREATE TABLE `reservations` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`batch_id` text NOT NULL,
	`chunk_number` integer NOT NULL,
	`epoch` integer NOT NULL,
	`project` text NOT NULL,
	`tokens` integer DEFAULT 0 NOT NULL,
	`cost` text NOT NULL
);
--> statement-breakpoint
CREATE UNIQUE INDEX `reservations_by_chunk` ON `reservations` (`batch_id`,`chunk_number`);--> statement-breakpoint
CREATE INDEX `reservations_by_project` ON `reservations` (`project`);--> statement-breakpoint
ALTER TABLE `batches` ADD `pause_limit` text;--> statement-breakpoint
ALTER TABLE `batches` ADD `budget` text;--> statement-breakpoint
ALTER TABLE `batches` ADD `estimated_tokens` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
CREATE INDEX `uploads_pending_by_project` ON `uploads` (`project`) WHERE status in ('pending');