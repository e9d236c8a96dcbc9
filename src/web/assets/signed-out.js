/** Runs on the form for a key: a session may have ended, or may be there without its cookie having come. */

// The other windows of this browser ask the server whether their session has ended.
new BroadcastChannel("batchd session").postMessage("signed out");

/** A browser sends the session with no link of another site, but with the requests of this page. */
async function enter() {
  if (document.referrer.startsWith(`${location.origin}/`)) return;
  const headers = { accept: "text/html" };
  const answer = await fetch(location.href, { method: "HEAD", headers }).catch(() => null);
  if (answer !== null && answer.status !== 401)
    location.replace(location.pathname + location.search);
}

void enter();
