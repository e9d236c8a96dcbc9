CREATE TABLE "batch_runs" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "batch_runs_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"batch_id" text NOT NULL,
	"input" json,
	"results" json,
	"record" text,
	CONSTRAINT "batch_runs_batch_id" UNIQUE("batch_id")
);
--> statement-breakpoint
ALTER TABLE "files" ADD COLUMN "copied_from" json;--> statement-breakpoint
ALTER TABLE "batch_runs" ADD CONSTRAINT "batch_runs_batch_id_batches_id_fk" FOREIGN KEY ("batch_id") REFERENCES "public"."batches"("id") ON DELETE cascade ON UPDATE no action;