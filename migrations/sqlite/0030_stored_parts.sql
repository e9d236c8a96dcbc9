INSERT INTO `stored_sums` (`project`, `file_count`, `bytes`)
SELECT `project`, 0, sum(`part_bytes`) FROM `uploads` WHERE `status` = 'pending' AND `part_bytes` > 0 GROUP BY `project`
ON CONFLICT (`project`) DO UPDATE SET `bytes` = `bytes` + excluded.`bytes`;
--> statement-breakpoint
DROP TRIGGER `files_take_from_stored_sums`;
--> statement-breakpoint
CREATE TRIGGER `files_take_from_stored_sums` AFTER UPDATE OF `deleted_at_ms` ON `files`
WHEN OLD.`deleted_at_ms` IS NULL AND NEW.`deleted_at_ms` IS NOT NULL
BEGIN
	UPDATE `stored_sums` SET `file_count` = `file_count` - 1, `bytes` = `bytes` - OLD.`bytes` WHERE `project` = OLD.`project`;
	DELETE FROM `stored_sums` WHERE `project` = OLD.`project` AND `file_count` = 0 AND `bytes` = 0;
END;
--> statement-breakpoint
DROP TRIGGER `files_removed_from_stored_sums`;
--> statement-breakpoint
CREATE TRIGGER `files_removed_from_stored_sums` AFTER DELETE ON `files` WHEN OLD.`deleted_at_ms` IS NULL
BEGIN
	UPDATE `stored_sums` SET `file_count` = `file_count` - 1, `bytes` = `bytes` - OLD.`bytes` WHERE `project` = OLD.`project`;
	DELETE FROM `stored_sums` WHERE `project` = OLD.`project` AND `file_count` = 0 AND `bytes` = 0;
END;
--> statement-breakpoint
CREATE TRIGGER `uploads_add_to_stored_sums` AFTER UPDATE OF `part_bytes` ON `uploads`
WHEN NEW.`status` = 'pending' AND NEW.`part_bytes` > OLD.`part_bytes`
BEGIN
	INSERT INTO `stored_sums` (`project`, `file_count`, `bytes`) VALUES (NEW.`project`, 0, NEW.`part_bytes` - OLD.`part_bytes`)
	ON CONFLICT (`project`) DO UPDATE SET `bytes` = `bytes` + excluded.`bytes`;
END;
--> statement-breakpoint
CREATE TRIGGER `uploads_take_from_stored_sums` AFTER UPDATE OF `status` ON `uploads`
WHEN OLD.`status` = 'pending' AND NEW.`status` <> 'pending' AND OLD.`part_bytes` > 0
BEGIN
	UPDATE `stored_sums` SET `bytes` = `bytes` - OLD.`part_bytes` WHERE `project` = OLD.`project`;
	DELETE FROM `stored_sums` WHERE `project` = OLD.`project` AND `file_count` = 0 AND `bytes` = 0;
END;
--> statement-breakpoint
CREATE TRIGGER `uploads_removed_from_stored_sums` AFTER DELETE ON `uploads`
WHEN OLD.`status` = 'pending' AND OLD.`part_bytes` > 0
BEGIN
	UPDATE `stored_sums` SET `bytes` = `bytes` - OLD.`part_bytes` WHERE `project` = OLD.`project`;
	DELETE FROM `stored_sums` WHERE `project` = OLD.`project` AND `file_count` = 0 AND `bytes` = 0;
END;
