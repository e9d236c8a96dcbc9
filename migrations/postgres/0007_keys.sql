CREATE TABLE "api_keys" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "api_keys_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"id" text NOT NULL,
	"project" text NOT NULL,
	"name" text NOT NULL,
	"scopes" json NOT NULL,
	"digest" text NOT NULL,
	"created_at_ms" bigint NOT NULL,
	"expires_at_ms" bigint,
	"last_used_at_ms" bigint,
	CONSTRAINT "api_keys_id" UNIQUE("id"),
	CONSTRAINT "digest_is_sha256" CHECK (length(digest) = 64)
);
--> statement-breakpoint
CREATE TABLE "key_requirement" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "key_requirement_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	CONSTRAINT "one_key_requirement" CHECK (sequence = 1)
);
