/**
 * Limits those who search. A list of batches with filters, and a report of usage, may read all that a project has ever
 * had, and a client that leaves does not end them. Without a bound a client could ask on and on, and all others would wait for
 * their time.
 */
import { ClientLimit } from "./client-limit.ts";

const MAX_SEARCHES = 64;
const MAX_SEARCHES_OF_PROJECT = 16;

export const searchLimit = (): ClientLimit =>
  new ClientLimit({
    total: MAX_SEARCHES,
    ofProject: MAX_SEARCHES_OF_PROJECT,
    message: "Too many clients are searching batches or usage. Please try again.",
  });
