/** Tells the other windows of this browser that their session may have ended. The server says whether it has. */

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
