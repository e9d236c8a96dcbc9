DROP INDEX `batches_to_validate`;--> statement-breakpoint
ALTER TABLE `batches` ADD `is_input_pending` integer;--> statement-breakpoint
ALTER TABLE `batches` ADD `source_template` text;--> statement-breakpoint
ALTER TABLE `batches` ADD `is_deduplicated` integer;--> statement-breakpoint
ALTER TABLE `batches` ADD `duplicate_count` integer;--> statement-breakpoint
ALTER TABLE `batches` ADD `first_duplicate_line` integer;--> statement-breakpoint
CREATE INDEX `batches_to_derive` ON `batches` (`project`,`sequence`) WHERE status in ('validating') and stop_reason is null and is_input_pending = 1;--> statement-breakpoint
CREATE INDEX `batches_to_validate` ON `batches` (`project`,`sequence`) WHERE status in ('validating') and stop_reason is null and is_input_pending is not 1;