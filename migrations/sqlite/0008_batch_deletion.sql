ALTER TABLE `batches` ADD `deleted_at_ms` integer;--> statement-breakpoint
CREATE INDEX `batches_deleted` ON `batches` (`sequence`) WHERE deleted_at_ms is not null;