/** Interactive requests go first, but never take all slots from the batches of other tenants. */
import { describe, expect, test } from "vitest";
import { answerChat } from "../support/given.ts";
import { waitingCount } from "../support/prometheus.ts";
import { chatLines, startTestService, type TestService } from "../support/service.ts";
import { type Exchange, startUpstream } from "../support/upstream.ts";

const INTERACTIVE = {
  model: "m",
  messages: [{ role: "user" as const, content: "Hello" }],
  user: "interactive",
};
const userOf = ({ body }: Exchange) => (JSON.parse(body.toString()) as { user?: string }).user;

describe("while one tenant has 64 requests open all the time", () => {
  const [SLOTS, OPEN_COUNT, LINE_COUNT] = [8, 64, 100];
  const configWith = (batch_share: number, base_url: string) => ({
    upstreams: [
      {
        name: "test",
        base_url,
        models: ["*"],
        batch_share,
        min_concurrency: SLOTS,
        max_concurrency: SLOTS,
      },
    ],
    auth: {
      keys: [
        { name: "alpha", key: "key-alpha", project: "alpha" },
        // As `TestService.openai` sends it.
        { name: "beta", key: "test", project: "beta" },
      ],
    },
  });

  /** Asks again whenever it has an answer. */
  async function askOnAndOn(own: TestService, signal: AbortSignal): Promise<void> {
    const headers = { authorization: "Bearer key-alpha" };
    const init = { method: "POST", headers, signal, body: JSON.stringify(INTERACTIVE) };
    try {
      for (;;) {
        const answer = await fetch(`${own.url}/v1/chat/completions`, init);
        expect(answer.status).toBe(200);
        await answer.text();
      }
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  }

  test("the batch of another one goes on with its share, and completes", async () => {
    await using busy = await startUpstream({ answers: "by_hand" });
    await using own = await startTestService({ config: configWith(0.25, busy.url) });
    const stop = new AbortController();
    const asking = Array.from({ length: OPEN_COUNT }, () => askOnAndOn(own, stop.signal));
    let held: Exchange[] = [];
    const fillSlots = async () => {
      held = [];
      while (held.length < SLOTS) held.push(await busy.next());
      return held.filter((exchange) => userOf(exchange) !== "interactive").length;
    };
    /** Answers all that is there; so many of the requests that follow are lines. */
    let heldLineCount = 0;
    const linesInRounds = async (roundCount: number) => {
      let lineCount = 0;
      for (let i = 0; i < roundCount; i++) {
        // The requests that are not in flight wait, and the next line of the batch.
        await waitingCount(own.url, OPEN_COUNT - (SLOTS - heldLineCount) + 1);
        for (const exchange of held) answerChat(exchange);
        heldLineCount = await fillSlots();
        lineCount += heldLineCount;
      }
      return lineCount;
    };
    expect(await fillSlots()).toBe(0);
    const batch = await own.submit(chatLines(LINE_COUNT));
    /**
     * What was saved for a line before the first round, or after the last one, is one line more or less, and a busy process may
     * be late with the next lines of some rounds. Without their share there would be none.
     */
    const expectLines = (lineCount: number, share: number) => {
      expect(Math.abs(lineCount - share)).toBeLessThanOrEqual(4);
    };
    expectLines(await linesInRounds(20), (20 * SLOTS) / 4);
    own.reconfigure(configWith(0.5, busy.url));
    expectLines(await linesInRounds(5), (5 * SLOTS) / 2);

    let isOver = false;
    const ended = own.ended(batch.id).finally(() => {
      isOver = true;
    });
    for (const exchange of held) answerChat(exchange);
    while (!isOver) answerChat(await busy.next());
    expect((await ended).request_counts).toEqual({
      total: LINE_COUNT,
      completed: LINE_COUNT,
      failed: 0,
    });
    stop.abort();
    await Promise.all(asking);
  });
});
