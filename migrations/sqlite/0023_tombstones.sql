CREATE TABLE `tombstones` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`list` text NOT NULL,
	`project` text NOT NULL,
	`id` text NOT NULL,
	`place` integer NOT NULL,
	`created_at_ms` integer NOT NULL,
	CONSTRAINT "tombstone_list_is_known" CHECK(list in ('batches', 'files', 'keys', 'projects'))
);
--> statement-breakpoint
CREATE UNIQUE INDEX `tombstones_id` ON `tombstones` (`project`,`list`,`id`);--> statement-breakpoint
CREATE INDEX `tombstones_by_age` ON `tombstones` (`created_at_ms`);