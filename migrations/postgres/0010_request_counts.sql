CREATE TABLE "request_counts" (
	"sequence" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "request_counts_sequence_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"project" text NOT NULL,
	"minute" bigint NOT NULL,
	"request_count" bigint DEFAULT 0 NOT NULL,
	CONSTRAINT "request_counts_project" UNIQUE("project")
);
