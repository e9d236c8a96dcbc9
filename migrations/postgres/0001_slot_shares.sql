CREATE TABLE "slot_shares" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "slot_shares_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"owner" text NOT NULL,
	"target" text NOT NULL,
	"wanted" integer NOT NULL,
	"held" integer NOT NULL,
	"expires_at_ms" bigint NOT NULL,
	CONSTRAINT "slot_shares_owner_target" UNIQUE("owner","target")
);
--> statement-breakpoint
CREATE INDEX "slot_shares_by_target" ON "slot_shares" USING btree ("target");