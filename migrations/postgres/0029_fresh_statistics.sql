ALTER TABLE "batches" SET (autovacuum_analyze_scale_factor = 0.001);--> statement-breakpoint
ALTER TABLE "batch_deliveries" SET (autovacuum_analyze_scale_factor = 0.001);--> statement-breakpoint
ALTER TABLE "files" SET (autovacuum_analyze_scale_factor = 0.001);--> statement-breakpoint
ALTER TABLE "uploads" SET (autovacuum_analyze_scale_factor = 0.001);
