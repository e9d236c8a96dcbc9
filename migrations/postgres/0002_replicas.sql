CREATE TABLE "replicas" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "replicas_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"owner" text NOT NULL,
	"report" text NOT NULL,
	"may_keep_house" boolean NOT NULL,
	"expires_at_ms" bigint NOT NULL,
	CONSTRAINT "replicas_owner" UNIQUE("owner")
);
