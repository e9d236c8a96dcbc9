/** Signs in at the web page. Returns the cookie of the session. */
export async function signIn(url: string, key: string): Promise<string> {
  const answer = await fetch(`${url}/web/sign-in`, {
    method: "POST",
    redirect: "manual",
    headers: { "sec-fetch-site": "same-origin" },
    body: new URLSearchParams({ key }),
  });
  const cookie = answer.headers.getSetCookie()[0]?.split(";")[0];
  if (cookie === undefined) throw new Error(`${answer.status}: no session`);
  return cookie;
}
