CREATE TABLE "project_locks" (
	"number" bigint PRIMARY KEY NOT NULL
);
--> statement-breakpoint
INSERT INTO "project_locks" ("number") SELECT generate_series(0, 2047);
