ALTER TABLE `batches` ADD `failure_groups` text;--> statement-breakpoint
ALTER TABLE `segments` ADD `failure_groups` text;