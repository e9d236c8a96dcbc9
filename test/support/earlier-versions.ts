/** SQL that takes the newest migrations of SQLite back, one after the other: it leaves the database of an earlier version. */

const FORGET_NEWEST =
  "delete from __drizzle_migrations where rowid = (select max(rowid) from __drizzle_migrations);";

const BEFORE_AWAITED_SOURCES = `
  drop index batches_waiting_by_source;
  drop index batches_awaited_no_more;
  alter table batches drop column is_awaited;
  ${FORGET_NEWEST}`;

const BEFORE_STORED_PARTS = `
  ${BEFORE_AWAITED_SOURCES}
  drop trigger uploads_add_to_stored_sums;
  drop trigger uploads_take_from_stored_sums;
  drop trigger uploads_removed_from_stored_sums;
  ${FORGET_NEWEST}`;

const BEFORE_PART_SUMS = `
  ${BEFORE_STORED_PARTS}
  drop trigger upload_parts_add_to_uploads;
  alter table uploads drop column part_count;
  alter table uploads drop column part_bytes;
  ${FORGET_NEWEST}`;

const BEFORE_SHOWN = `
  ${BEFORE_PART_SUMS}
  drop index batches_shown;
  drop index batches_shown_to_finalize;
  drop index batches_shown_open;
  drop index files_deleted_by_project;
  drop trigger model_usage_adds_to_usage_sums;
  drop trigger model_usage_changes_usage_sums;
  drop trigger model_usage_removed_from_usage_sums;
  create index batches_to_finalize on batches (project, sequence);
  ${FORGET_NEWEST}`;

const BEFORE_TURNS = `
  ${BEFORE_SHOWN}
  drop index batches_open_by_project;
  drop index deliveries_by_batch;
  drop index deliveries_by_webhook;
  drop index deliveries_by_project;
  drop index deliveries_claimed;
  alter table deliveries drop column project;
  create index deliveries_due on deliveries (next_attempt_at_ms);
  drop index batch_deliveries_due;
  alter table batch_deliveries drop column project;
  create index batch_deliveries_due on batch_deliveries (next_attempt_at_ms);
  ${FORGET_NEWEST}`;

export const BEFORE_STORED_SUMS = `
  ${BEFORE_TURNS}
  drop table stored_sums;
  drop trigger files_add_to_stored_sums;
  drop trigger files_take_from_stored_sums;
  drop trigger files_removed_from_stored_sums;
  ${FORGET_NEWEST}`;

export const BEFORE_USAGE_SUMS = `
  ${BEFORE_STORED_SUMS}
  drop index batches_to_finalize;
  ${FORGET_NEWEST}
  drop table usage_sums;
  ${FORGET_NEWEST}`;
