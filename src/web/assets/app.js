/** Starts the scripts of a page. Each works on what the server has rendered, and without it the page can still be read. */
import { startActions } from "./actions.js";
import { startLive } from "./live.js";
import { startTimes } from "./times.js";

startTimes();
startActions();
startLive();
