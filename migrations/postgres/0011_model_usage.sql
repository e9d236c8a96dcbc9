CREATE TABLE "model_usage" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "model_usage_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"batch_id" text NOT NULL,
	"project" text NOT NULL,
	"model" text NOT NULL,
	"day" text NOT NULL,
	"price" text NOT NULL,
	"request_count" bigint DEFAULT 0 NOT NULL,
	"input_tokens" bigint DEFAULT 0 NOT NULL,
	"cached_tokens" bigint DEFAULT 0 NOT NULL,
	"output_tokens" bigint DEFAULT 0 NOT NULL,
	CONSTRAINT "model_usage_by_batch" UNIQUE("batch_id","model","day","price")
);
--> statement-breakpoint
ALTER TABLE "segments" ADD COLUMN "model_usage" json;--> statement-breakpoint
CREATE INDEX "model_usage_by_day" ON "model_usage" USING btree ("day","sequence");--> statement-breakpoint
CREATE INDEX "model_usage_by_project_and_day" ON "model_usage" USING btree ("project","day","sequence");