CREATE TABLE `installation` (
	`is_only` integer PRIMARY KEY DEFAULT true NOT NULL,
	`id` text NOT NULL,
	`origin_id` text,
	`copied_at_ms` integer,
	CONSTRAINT "installation_has_one_row" CHECK(is_only = 1)
);
