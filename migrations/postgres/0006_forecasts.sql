CREATE TABLE "forecasts" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "forecasts_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"batch_id" text NOT NULL,
	"eta_at_ms" bigint,
	"is_at_risk" boolean NOT NULL,
	"queue_position" integer,
	"waiting" json,
	"common_failure" json,
	CONSTRAINT "forecasts_batch_id" UNIQUE("batch_id")
);
--> statement-breakpoint
CREATE INDEX "forecasts_at_risk" ON "forecasts" USING btree ("batch_id") WHERE is_at_risk;