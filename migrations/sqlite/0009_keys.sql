CREATE TABLE `api_keys` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`id` text NOT NULL,
	`project` text NOT NULL,
	`name` text NOT NULL,
	`scopes` text NOT NULL,
	`digest` text NOT NULL,
	`created_at_ms` integer NOT NULL,
	`expires_at_ms` integer,
	`last_used_at_ms` integer,
	CONSTRAINT "digest_is_sha256" CHECK(length(digest) = 64)
);
--> statement-breakpoint
CREATE UNIQUE INDEX `api_keys_id` ON `api_keys` (`id`);--> statement-breakpoint
CREATE TABLE `key_requirement` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	CONSTRAINT "one_key_requirement" CHECK(sequence = 1)
);
