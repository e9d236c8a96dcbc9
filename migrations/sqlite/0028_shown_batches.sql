DROP INDEX `batches_to_finalize`;--> statement-breakpoint
CREATE INDEX `batches_shown` ON `batches` (`project`,`sequence`) WHERE deleted_at_ms is null;--> statement-breakpoint
CREATE INDEX `batches_shown_to_finalize` ON `batches` (`project`,`sequence`) WHERE status in ('validating', 'in_progress', 'finalizing', 'cancelling') and (stop_reason is not null or status in ('finalizing')) and deleted_at_ms is null;--> statement-breakpoint
CREATE INDEX `batches_shown_open` ON `batches` (`project`) WHERE status in ('validating', 'in_progress', 'finalizing', 'cancelling') and deleted_at_ms is null;--> statement-breakpoint
CREATE INDEX `files_deleted_by_project` ON `files` (`project`) WHERE deleted_at_ms is not null;