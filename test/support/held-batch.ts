import { FakeClock } from "./fake-clock.ts";
import { chatLines, startTestService } from "./service.ts";
import { startUpstream } from "./upstream.ts";

/** A service whose clock stands still, with a batch of so many lines. A model server has them all, and answers none. */
export async function startHeldBatch(lineCount: number) {
  const clock = new FakeClock();
  const upstream = await startUpstream();
  const service = await startTestService({ clock, upstreamUrl: upstream.url });
  upstream.hold();
  const { id, input_file_id: input } = await service.submit(chatLines(lineCount));
  await upstream.reached(lineCount);
  return {
    clock,
    upstream,
    service,
    id,
    input,
    [Symbol.asyncDispose]: async () => {
      await service[Symbol.asyncDispose]();
      await upstream[Symbol.asyncDispose]();
    },
  };
}
