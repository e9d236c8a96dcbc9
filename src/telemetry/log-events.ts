/** Every event that the log may have, by level, with its meaning. The compiler refuses any other event. */
export const LOG_EVENTS = {
  error: {
    "audit.not_written":
      "The audit log cannot be written; its lines wait in memory, and requests go on.",
    "batch.failing_alike": "The first 50 lines of a batch have all failed in the same way.",
    "chunk.failed": "A chunk could not be worked on; it is tried again when its lease has run out.",
    "chunk.given_away":
      "The answers of a chunk cannot be written here, while other processes can write. It goes to one of them.",
    "chunk.given_up":
      "The remaining lines of a chunk failed in every try; they get rows in the error file.",
    "batch.given_up":
      "The results of a batch, or its validation, failed in every try; it ends without them.",
    "config.refused": "The configuration was loaded again and has problems; the old one stays.",
    "database.damaged":
      "The file of the database is damaged, or was removed or replaced. Nothing is written to it any more, and all work waits: stop the server and restore a backup.",
    "delivery.given_up":
      "Results were not delivered: the place refused them, or did not take them in a day.",
    "delivery.not_recorded":
      "What became of a delivery could not be written; it is tried again and finds what is there.",
    "file.lost":
      "A client asked for a file that is listed, and its content is gone, as after a disk was damaged or older files were restored.",
    "input.unreadable": "The content of an input file is gone or damaged; its batch fails.",
    "journal.damaged":
      "Answers that were durable cannot be read any more: the disk is damaged. Those of the batch itself are asked for again while there is time.",
    "journal.write_failed":
      "Answers could not be made durable; no others are asked for until they are.",
    "loop.pass_failed": "A background loop could not do its work; it tries again.",
    "part.lost":
      "The content of a part of an upload is gone or damaged, as after a disk was damaged; its client is told to add it again.",
    "request.completed": "A request to batchd ended with a status of 500 or more.",
    "results.commit_failed":
      "The results of a batch are written, but cannot be published; it is tried again.",
    "sweep.failed": "Data that is not needed any more could not be removed; it is tried again.",
    "upstream.refused":
      "A target does not accept batchd's key, account or address; its lines wait until the operator corrects it.",
    "webhook.given_up": "An event was not taken for as long as it is tried.",
    "webhook.not_recorded":
      "What became of a delivery could not be written; the event may be sent twice.",
  },
  warn: {
    "audit.written_again":
      "The audit log can be written again; `lost` lines did not fit into memory.",
    "batch.reopened": "Lines of a batch whose answers cannot be read any more are sent again.",
    "blob.left_behind":
      "The blob of a file that was refused could not be removed; the sweep will find it.",
    "config.nudge_failed":
      "The other servers could not be asked to read their configuration again; they notice a changed file by themselves.",
    "config.warning": "A configuration that took effect has something that is probably not meant.",
    "config.restart_needed": "Some of what was changed takes effect at the next start.",
    "delivery.attempt_failed":
      "Results could not be delivered at the first attempt; it is tried again.",
    "delivery.given_up":
      "Results were not delivered to the bucket of a client: it refused them, or did not take them in a day.",
    "delivery.not_discarded":
      "What the attempts of an ended delivery had left at its place could not be removed; `left` names it.",
    "download.broken": "A download ended before its last byte.",
    "log.lines_dropped":
      "What reads the log had stopped for a while; `lines` lines did not fit into memory.",
    "interactive_slot.not_released":
      "The slot of an interactive request is free only after a while.",
    "interactive_slots.not_renewed":
      "The slots of interactive requests may end early, as the store is away: a project may have more under way.",
    "failure.not_counted": "A failure could not be counted, as the store was away.",
    "idempotency_key.not_renewed":
      "The claim of a key could not be renewed; it is tried again before the claim runs out.",
    "idempotency_key.left_behind": "The key of a request that failed is free only after a while.",
    "page.poll_failed":
      "An open page of the web page could not be brought up to date; it is tried again.",
    "proxy.broken": "The answer to an interactive request broke off.",
    "replicas.disagree":
      "Servers on one database have different upstreams, named in `upstreams`, or other settings that are to be the same, named in `settings`. Lines go only to servers that serve their models.",
    "route.unserved": "Lines wait for a model that no upstream serves any more.",
    "server.cut_off":
      "The server ended before everything was closed, as the database or the bucket did not answer; what was under way is taken up as after a kill.",
    "target.circuit_opened": "A target gets no requests for a while, because it answered none.",
    "traces.not_sent": "Traces are lost, as their receiver does not take them.",
    "upstream.failed": "A target answered with a 5xx, with nothing of use, or not in time.",
    "upstream.overloaded": "A target asked to be left alone (429, 498, 503, 529).",
    "upstream.unreachable": "A target could not be connected to.",
    "webhook.attempt_failed": "An event was not taken at the first attempt; it is tried again.",
  },
  info: {
    "batch.cancelled": "A batch ended because its client asked for it.",
    "batch.cancelling": "A client asked to end a batch.",
    "batch.completed":
      "A batch ended by itself; `failed` of its `total` lines are in the error file.",
    "batch.created": "A client created a batch.",
    "batch.deleted": "A client deleted a batch.",
    "batch.expired": "A batch ended because its window was over.",
    "batch.failed": "The input of a batch was refused.",
    "batch.paused":
      "No new lines of a batch go out: a client asked for it, or `reason` names a budget or a quota.",
    "batch.updated": "A client changed the budget, the priority or the metadata of a batch.",
    "batch.resumed": "The lines of a paused batch may go out again.",
    "input.derived": "The input of a batch was made of lines of another one.",
    "batch.started": "The input of a batch was accepted; its lines may go out.",
    "batch.waits_for_server":
      "A batch is looked at again: no server serves a model of it, and one that did has left a moment ago, or the settings of this server refuse it, and those of another one differ.",
    "batch.window_over": "The window of a batch is over; it is ending.",
    "config.reloaded": "A changed configuration took effect.",
    "delivery.cancelled": "A client cancelled a delivery.",
    "delivery.created": "A client asked for a delivery of results.",
    "delivery.delivered": "The results of a batch are at their place.",
    "file.deleted": "A client deleted a file.",
    "file.expired": "The time of a file was over.",
    "file.stored": "A file was uploaded.",
    "project.changed": "An operator made a project, or gave it other rules.",
    "project.deleting": "An operator deleted a project; its data is removed from now on.",
    "key.created": "An operator made a key.",
    "key.revoked": "An operator revoked a key.",
    "orphan.removed":
      "A blob that no row names, and that none can name any more, was removed; a crash had left it.",
    "replicas.agree": "Servers on one database have the same upstreams and settings again.",
    "server.started": "Requests are accepted from now on.",
    "server.stopped": "Everything is closed.",
    "server.stopping": "A signal asked the server to end.",
    "target.circuit_closed": "A target answers again.",
    "traces.sent_again": "The receiver of traces takes them again.",
    "upload.cancelled": "A client cancelled an upload in parts.",
    "upload.completed": "The parts of an upload became a file.",
    "upload.created": "A client began an upload in parts.",
    "upload.expired": "The time of an upload in parts was over.",
    "upstream.recovered": "A target that had failed gave a good answer.",
    "webhook.delivered": "An event was taken.",
  },
  debug: {
    "batch.removed": "The rows and the journal of a deleted batch are gone.",
    "chunk.claimed": "This process took the lease on a chunk.",
    "chunk.ended": "This process is done with a chunk.",
    "delivery.attempt_failed": "Results could not be delivered once more; it is tried again.",
    "delivery.lost": "Another process has the lease of a delivery, or its batch was deleted.",
    "delivery.started": "This process took the lease of a delivery.",
    "download.broken":
      "A client left before the end of its download, its key has ended, or its file was deleted.",
    "file.removed": "The bytes of a file are gone.",
    "journal.flushed": "A group of answers was made durable.",
    "journal.removed": "The journal of a final batch is gone.",
    "line.recorded": "A line has its final outcome.",
    "part.stored": "A part of an upload came in.",
    "proxy.client_disconnected":
      "A client left before the end of the answer to its interactive request.",
    "request.completed": "A request to batchd ended.",
    "target.circuit_half_open": "A target that was left alone is tried with one request.",
    "target.limit_changed":
      "A target may have more or fewer requests in flight (`from`, `to`); `reason` says why.",
    "upload.parts_removed": "The parts of an upload that is over are gone.",
    "upstream.models_unknown": "A target did not say which models it has.",
    "webhook.attempt_failed": "An event was not taken once more; it is tried again.",
  },
} as const satisfies Readonly<Record<string, Readonly<Record<string, string>>>>;
