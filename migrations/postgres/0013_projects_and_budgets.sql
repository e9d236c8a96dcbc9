CREATE TABLE "interactive_slots" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "interactive_slots_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"id" text NOT NULL,
	"project" text NOT NULL,
	"expires_at_ms" bigint NOT NULL,
	CONSTRAINT "interactive_slots_id" UNIQUE("id")
);
--> statement-breakpoint
CREATE TABLE "projects" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "projects_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"name" text NOT NULL,
	"rules" json NOT NULL,
	"created_at_ms" bigint NOT NULL,
	"changed_at_ms" bigint NOT NULL,
	"deleted_at_ms" bigint,
	CONSTRAINT "projects_name" UNIQUE("name")
);
--> statement-breakpoint
CREATE TABLE "reservations" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "reservations_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"batch_id" text NOT NULL,
	"chunk_number" integer NOT NULL,
	"epoch" bigint NOT NULL,
	"project" text NOT NULL,
	"tokens" bigint DEFAULT 0 NOT NULL,
	"cost" text NOT NULL,
	CONSTRAINT "reservations_by_chunk" UNIQUE("batch_id","chunk_number")
);
--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "pause_limit" text;--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "budget" text;--> statement-breakpoint
ALTER TABLE "batches" ADD COLUMN "estimated_tokens" bigint DEFAULT 0 NOT NULL;--> statement-breakpoint
CREATE INDEX "interactive_slots_by_project" ON "interactive_slots" USING btree ("project","expires_at_ms");--> statement-breakpoint
CREATE INDEX "reservations_by_project" ON "reservations" USING btree ("project");--> statement-breakpoint
CREATE INDEX "uploads_pending_by_project" ON "uploads" USING btree ("project") WHERE status in ('pending');