ALTER TABLE `chunks` RENAME COLUMN "route" TO "model";--> statement-breakpoint
DROP INDEX `chunks_open_by_batch`;--> statement-breakpoint
CREATE INDEX `chunks_open_by_batch` ON `chunks` (`batch_id`,`model`,`number`,`lease_expires_at_ms`,`line_count`) WHERE closed_at_ms is null;