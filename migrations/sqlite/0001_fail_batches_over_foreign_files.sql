-- Earlier versions looked for the input of a batch by its id alone, so a batch could read the file of another project.
-- Those that are still open end here, as if the file were unknown; their journals are swept.
UPDATE batches SET
  status = 'failed',
  failed_at_ms = CAST(unixepoch('subsec') * 1000 AS INTEGER),
  faults = json_array(json_object(
    'code', 'invalid_request',
    'message', 'Cannot find file ' || input_file_id || ', or project ' || project || ' does not have access to it.',
    'param', 'file_id',
    'line', NULL)),
  stop_reason = NULL,
  cancelling_at_ms = NULL,
  lease_owner = NULL,
  lease_expires_at_ms = NULL
WHERE status IN ('in_progress', 'finalizing', 'cancelling')
  AND EXISTS (
    SELECT 1 FROM files WHERE files.id = batches.input_file_id AND files.project <> batches.project);
