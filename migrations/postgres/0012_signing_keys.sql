CREATE TABLE "signing_keys" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "signing_keys_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"purpose" text NOT NULL,
	"key" text NOT NULL,
	CONSTRAINT "signing_keys_purpose" UNIQUE("purpose")
);
