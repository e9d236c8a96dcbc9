ALTER TABLE `batches` ADD `sample_line_count` integer;--> statement-breakpoint
ALTER TABLE `batches` ADD `sample_chunk_count` integer;--> statement-breakpoint
ALTER TABLE `batches` ADD `source_batch_id` text;--> statement-breakpoint
ALTER TABLE `batches` ADD `source_lines` text;--> statement-breakpoint
ALTER TABLE `batches` ADD `is_merged` integer DEFAULT false NOT NULL;--> statement-breakpoint
ALTER TABLE `batches` ADD `merged_input_file_id` text;--> statement-breakpoint
ALTER TABLE `batches` ADD `merged_output_file_id` text;--> statement-breakpoint
ALTER TABLE `batches` ADD `merged_error_file_id` text;--> statement-breakpoint
ALTER TABLE `batches` ADD `line_marks` text;--> statement-breakpoint
CREATE INDEX `batches_open_by_merged_output` ON `batches` (`merged_output_file_id`) WHERE status in ('validating', 'in_progress', 'finalizing', 'cancelling') and is_merged = 1;--> statement-breakpoint
CREATE INDEX `batches_open_by_merged_error` ON `batches` (`merged_error_file_id`) WHERE status in ('validating', 'in_progress', 'finalizing', 'cancelling') and is_merged = 1;--> statement-breakpoint
CREATE INDEX `batches_by_source` ON `batches` (`source_batch_id`,`sequence`) WHERE source_batch_id is not null;