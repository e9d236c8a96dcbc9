CREATE TABLE "batch_progress" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "batch_progress_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"batch_id" text NOT NULL,
	"samples" json NOT NULL,
	CONSTRAINT "batch_progress_batch_id" UNIQUE("batch_id")
);
--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "latency_counts" bigint[];--> statement-breakpoint
ALTER TABLE "segments" ADD COLUMN "latency_counts" bigint[];--> statement-breakpoint
ALTER TABLE "batch_progress" ADD CONSTRAINT "batch_progress_batch_id_batches_id_fk" FOREIGN KEY ("batch_id") REFERENCES "public"."batches"("id") ON DELETE cascade ON UPDATE no action;