/** A target that gets interactive requests alone learns from their answers how many it may have at a time. */
import { expect, test } from "vitest";
import { answerChat } from "../support/given.ts";
import { startTestService } from "../support/service.ts";
import { type Exchange, startUpstream } from "../support/upstream.ts";

const [AT_FIRST, REQUESTS] = [16, 40];

test("more interactive requests than at the start are under way at once, without a batch", async () => {
  await using upstream = await startUpstream({ answers: "by_hand" });
  const target = { name: "test", base_url: upstream.url, models: ["*"], max_concurrency: 64 };
  await using own = await startTestService({ config: { upstreams: [target] } });
  const body = JSON.stringify({ model: "m", messages: [{ role: "user", content: "Hello" }] });
  const asked = Array.from({ length: REQUESTS }, async () => {
    const answer = await fetch(`${own.url}/v1/chat/completions`, { method: "POST", body });
    await answer.text();
    return answer.status;
  });
  const take = async (count: number) => {
    const taken: Exchange[] = [];
    while (taken.length < count) taken.push(await upstream.next());
    return taken;
  };
  for (const exchange of await take(AT_FIRST)) answerChat(exchange);
  // None of them is answered before all are there.
  for (const exchange of await take(REQUESTS - AT_FIRST)) answerChat(exchange);
  expect(new Set(await Promise.all(asked))).toEqual(new Set([200]));
});
