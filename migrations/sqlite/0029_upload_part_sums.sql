ALTER TABLE `uploads` ADD `part_count` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `uploads` ADD `part_bytes` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
UPDATE `uploads` SET (`part_count`, `part_bytes`) = (SELECT count(*), coalesce(sum(`bytes`), 0) FROM `upload_parts` WHERE `upload_id` = `uploads`.`id`) WHERE `has_parts`;
--> statement-breakpoint
CREATE TRIGGER `upload_parts_add_to_uploads` AFTER INSERT ON `upload_parts`
BEGIN
	UPDATE `uploads` SET `part_count` = `part_count` + 1, `part_bytes` = `part_bytes` + NEW.`bytes` WHERE `id` = NEW.`upload_id`;
END;
