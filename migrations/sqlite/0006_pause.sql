ALTER TABLE `batches` ADD `paused_at_ms` integer;--> statement-breakpoint
ALTER TABLE `batches` ADD `pause_reason` text;