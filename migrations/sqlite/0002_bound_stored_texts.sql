-- Earlier versions stored file names, types and ids of any length: a few hundred of a megabyte each made a list
-- unreadable. They are cut to what is accepted now.
UPDATE files SET filename = substr(filename, 1, 512) WHERE octet_length(filename) > 2048;
--> statement-breakpoint
UPDATE uploads SET filename = substr(filename, 1, 512) WHERE octet_length(filename) > 2048;
--> statement-breakpoint
UPDATE uploads SET mime_type = substr(mime_type, 1, 255) WHERE octet_length(mime_type) > 1020;
--> statement-breakpoint
UPDATE batches SET
  input_file_id = substr(input_file_id, 1, 64),
  faults = CASE WHEN faults IS NULL THEN NULL ELSE json_array(json_object(
    'code', 'invalid_request',
    'message', 'Cannot find file ' || substr(input_file_id, 1, 64) || ', or project ' || project || ' does not have access to it.',
    'param', 'file_id',
    'line', NULL)) END
WHERE octet_length(input_file_id) > 256;
