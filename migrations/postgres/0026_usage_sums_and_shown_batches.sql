CREATE TABLE "usage_sums" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "usage_sums_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"project" text NOT NULL,
	"day" text NOT NULL,
	"price" text NOT NULL,
	"stripe" integer NOT NULL,
	"request_count" bigint DEFAULT 0 NOT NULL,
	"input_tokens" bigint DEFAULT 0 NOT NULL,
	"cached_tokens" bigint DEFAULT 0 NOT NULL,
	"output_tokens" bigint DEFAULT 0 NOT NULL,
	CONSTRAINT "usage_sums_key" UNIQUE("project","day","price","stripe")
);
--> statement-breakpoint
CREATE INDEX "files_deleted_by_project" ON "files" USING btree ("project") WHERE deleted_at_ms is not null;--> statement-breakpoint
CREATE INDEX "files_stored" ON "files" USING btree ("project","bytes") WHERE deleted_at_ms is null;--> statement-breakpoint
CREATE INDEX "batches_shown" ON "batches" USING btree ("project","sequence") WHERE deleted_at_ms is null;--> statement-breakpoint
CREATE INDEX "batches_shown_to_finalize" ON "batches" USING btree ("project","sequence") WHERE status in ('validating', 'in_progress', 'finalizing', 'cancelling') and (stop_reason is not null or status in ('finalizing')) and deleted_at_ms is null;--> statement-breakpoint
CREATE INDEX "batches_shown_open" ON "batches" USING btree ("project") WHERE status in ('validating', 'in_progress', 'finalizing', 'cancelling') and deleted_at_ms is null;--> statement-breakpoint
CREATE FUNCTION "add_to_usage_sums"() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO "usage_sums" AS "sums" ("project", "day", "price", "stripe", "request_count", "input_tokens", "cached_tokens", "output_tokens")
	VALUES (
		coalesce(NEW."project", OLD."project"), coalesce(NEW."day", OLD."day"), coalesce(NEW."price", OLD."price"),
		ascii(right(coalesce(NEW."batch_id", OLD."batch_id"), 1)) % 16,
		coalesce(NEW."request_count", 0) - coalesce(OLD."request_count", 0),
		coalesce(NEW."input_tokens", 0) - coalesce(OLD."input_tokens", 0),
		coalesce(NEW."cached_tokens", 0) - coalesce(OLD."cached_tokens", 0),
		coalesce(NEW."output_tokens", 0) - coalesce(OLD."output_tokens", 0))
	ON CONFLICT ("project", "day", "price", "stripe") DO UPDATE SET
		"request_count" = "sums"."request_count" + excluded."request_count",
		"input_tokens" = "sums"."input_tokens" + excluded."input_tokens",
		"cached_tokens" = "sums"."cached_tokens" + excluded."cached_tokens",
		"output_tokens" = "sums"."output_tokens" + excluded."output_tokens"; RETURN NULL; END $$;
--> statement-breakpoint
CREATE TRIGGER "model_usage_adds_to_usage_sums" AFTER INSERT OR UPDATE OR DELETE ON "model_usage"
FOR EACH ROW EXECUTE FUNCTION "add_to_usage_sums"();
--> statement-breakpoint
INSERT INTO "usage_sums" ("project", "day", "price", "stripe", "request_count", "input_tokens", "cached_tokens", "output_tokens")
SELECT "project", "day", "price", ascii(right("batch_id", 1)) % 16, sum("request_count"), sum("input_tokens"), sum("cached_tokens"), sum("output_tokens")
FROM "model_usage" GROUP BY 1, 2, 3, 4;
