ALTER TABLE "uploads" ADD COLUMN "part_count" bigint DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE "uploads" ADD COLUMN "part_bytes" bigint DEFAULT 0 NOT NULL;--> statement-breakpoint
CREATE FUNCTION "add_to_uploads"() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	UPDATE "uploads" SET "part_count" = "part_count" + "sums"."count", "part_bytes" = "part_bytes" + "sums"."bytes"
	FROM (SELECT "upload_id", count(*) AS "count", sum("bytes") AS "bytes" FROM "added" GROUP BY "upload_id") AS "sums"
	WHERE "id" = "sums"."upload_id"; RETURN NULL; END $$;
--> statement-breakpoint
CREATE TRIGGER "upload_parts_add_to_uploads" AFTER INSERT ON "upload_parts"
REFERENCING NEW TABLE AS "added" FOR EACH STATEMENT EXECUTE FUNCTION "add_to_uploads"();
--> statement-breakpoint
UPDATE "uploads" SET ("part_count", "part_bytes") = (SELECT count(*), coalesce(sum("bytes"), 0) FROM "upload_parts" WHERE "upload_id" = "uploads"."id") WHERE "has_parts";
