/** Tells the other windows of this browser that their session may have ended. The server says whether it has. */

new BroadcastChannel("batchd session").postMessage("signed out");
