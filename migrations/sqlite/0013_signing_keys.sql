CREATE TABLE `signing_keys` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`purpose` text NOT NULL,
	`key` text NOT NULL
);
--> statement-breakpoint
CREATE UNIQUE INDEX `signing_keys_purpose` ON `signing_keys` (`purpose`);