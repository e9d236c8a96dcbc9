CREATE TABLE `stored_sums` (
	`sequence` integer PRIMARY KEY AUTOINCREMENT NOT NULL,
	`project` text NOT NULL,
	`file_count` integer NOT NULL,
	`bytes` integer NOT NULL
);
--> statement-breakpoint
CREATE UNIQUE INDEX `stored_sums_project` ON `stored_sums` (`project`);--> statement-breakpoint
INSERT INTO `stored_sums` (`project`, `file_count`, `bytes`)
SELECT `project`, count(*), sum(`bytes`) FROM `files` WHERE `deleted_at_ms` IS NULL GROUP BY `project`;
--> statement-breakpoint
CREATE TRIGGER `files_add_to_stored_sums` AFTER INSERT ON `files` WHEN NEW.`deleted_at_ms` IS NULL
BEGIN
	INSERT INTO `stored_sums` (`project`, `file_count`, `bytes`) VALUES (NEW.`project`, 1, NEW.`bytes`)
	ON CONFLICT (`project`) DO UPDATE SET `file_count` = `file_count` + 1, `bytes` = `bytes` + excluded.`bytes`;
END;
--> statement-breakpoint
CREATE TRIGGER `files_take_from_stored_sums` AFTER UPDATE OF `deleted_at_ms` ON `files`
WHEN OLD.`deleted_at_ms` IS NULL AND NEW.`deleted_at_ms` IS NOT NULL
BEGIN
	UPDATE `stored_sums` SET `file_count` = `file_count` - 1, `bytes` = `bytes` - OLD.`bytes` WHERE `project` = OLD.`project`;
	DELETE FROM `stored_sums` WHERE `project` = OLD.`project` AND `file_count` = 0;
END;
--> statement-breakpoint
CREATE TRIGGER `files_removed_from_stored_sums` AFTER DELETE ON `files` WHEN OLD.`deleted_at_ms` IS NULL
BEGIN
	UPDATE `stored_sums` SET `file_count` = `file_count` - 1, `bytes` = `bytes` - OLD.`bytes` WHERE `project` = OLD.`project`;
	DELETE FROM `stored_sums` WHERE `project` = OLD.`project` AND `file_count` = 0;
END;
