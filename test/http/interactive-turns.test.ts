/** Interactive requests of several projects that wait for the same model server. */
import { expect, test } from "vitest";
import { answerChat } from "../support/given.ts";
import { CHAT } from "../support/interactive.ts";
import { waitingCount } from "../support/prometheus.ts";
import { startTestService } from "../support/service.ts";
import { startUpstream } from "../support/upstream.ts";

test("one interactive request of a project waits for no more than a turn of each other project", async () => {
  await using upstream = await startUpstream({ answers: "by_hand" });
  const keys = ["many", "few", "one"].map((name) => ({ name, key: `key-${name}`, project: name }));
  const only = { name: "only", base_url: upstream.url, models: ["*"], max_concurrency: 1 };
  await using service = await startTestService({ config: { upstreams: [only], auth: { keys } } });
  let waiting = -1;
  const ask = async (project: string, count: number) => {
    const body = JSON.stringify({ ...CHAT, user: project });
    const headers = { authorization: `Bearer key-${project}` };
    const url = `${service.url}/v1/chat/completions`;
    const answers = Array.from({ length: count }, () =>
      fetch(url, { method: "POST", headers, body }),
    );
    waiting += count;
    // The first request of all has the slot, and the others are known to wait.
    await waitingCount(service.url, waiting);
    return answers;
  };
  const answers = [...(await ask("many", 6)), ...(await ask("few", 2)), ...(await ask("one", 1))];
  const order: string[] = [];
  for (const _ of answers) {
    const exchange = await upstream.next();
    order.push((JSON.parse(exchange.body) as { user: string }).user);
    answerChat(exchange);
  }
  for (const answer of answers) expect((await answer).status).toBe(200);
  expect(order.slice(0, 4)).toEqual(["many", "many", "few", "one"]);
  expect(order.slice(4)).toEqual(["many", "few", "many", "many", "many"]);
});
