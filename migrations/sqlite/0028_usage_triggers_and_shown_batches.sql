DROP INDEX `batches_to_finalize`;--> statement-breakpoint
CREATE INDEX `batches_shown` ON `batches` (`project`,`sequence`) WHERE deleted_at_ms is null;--> statement-breakpoint
CREATE INDEX `batches_shown_to_finalize` ON `batches` (`project`,`sequence`) WHERE status in ('validating', 'in_progress', 'finalizing', 'cancelling') and (stop_reason is not null or status in ('finalizing')) and deleted_at_ms is null;--> statement-breakpoint
CREATE INDEX `batches_shown_open` ON `batches` (`project`) WHERE status in ('validating', 'in_progress', 'finalizing', 'cancelling') and deleted_at_ms is null;--> statement-breakpoint
CREATE INDEX `files_deleted_by_project` ON `files` (`project`) WHERE deleted_at_ms is not null;
--> statement-breakpoint
CREATE TRIGGER `model_usage_adds_to_usage_sums` AFTER INSERT ON `model_usage`
BEGIN
	INSERT INTO `usage_sums` (`project`, `day`, `price`, `request_count`, `input_tokens`, `cached_tokens`, `output_tokens`)
	VALUES (NEW.`project`, NEW.`day`, NEW.`price`, NEW.`request_count`, NEW.`input_tokens`, NEW.`cached_tokens`, NEW.`output_tokens`)
	ON CONFLICT (`project`, `day`, `price`) DO UPDATE SET `request_count` = `request_count` + excluded.`request_count`, `input_tokens` = `input_tokens` + excluded.`input_tokens`, `cached_tokens` = `cached_tokens` + excluded.`cached_tokens`, `output_tokens` = `output_tokens` + excluded.`output_tokens`;
END;
--> statement-breakpoint
CREATE TRIGGER `model_usage_changes_usage_sums` AFTER UPDATE ON `model_usage`
BEGIN
	UPDATE `usage_sums` SET `request_count` = `request_count` + NEW.`request_count` - OLD.`request_count`, `input_tokens` = `input_tokens` + NEW.`input_tokens` - OLD.`input_tokens`, `cached_tokens` = `cached_tokens` + NEW.`cached_tokens` - OLD.`cached_tokens`, `output_tokens` = `output_tokens` + NEW.`output_tokens` - OLD.`output_tokens`
	WHERE `project` = OLD.`project` AND `day` = OLD.`day` AND `price` = OLD.`price`;
END;
--> statement-breakpoint
CREATE TRIGGER `model_usage_removed_from_usage_sums` AFTER DELETE ON `model_usage`
BEGIN
	UPDATE `usage_sums` SET `request_count` = `request_count` - OLD.`request_count`, `input_tokens` = `input_tokens` - OLD.`input_tokens`, `cached_tokens` = `cached_tokens` - OLD.`cached_tokens`, `output_tokens` = `output_tokens` - OLD.`output_tokens`
	WHERE `project` = OLD.`project` AND `day` = OLD.`day` AND `price` = OLD.`price`;
END;
