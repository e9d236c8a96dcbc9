CREATE TABLE "tombstones" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "tombstones_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"list" text NOT NULL,
	"project" text NOT NULL,
	"id" text NOT NULL,
	"place" bigint NOT NULL,
	"created_at_ms" bigint NOT NULL,
	CONSTRAINT "tombstones_id" UNIQUE("project","list","id"),
	CONSTRAINT "tombstone_list_is_known" CHECK (list in ('batches', 'files', 'keys', 'projects'))
);
--> statement-breakpoint
CREATE INDEX "tombstones_by_age" ON "tombstones" USING btree ("created_at_ms");