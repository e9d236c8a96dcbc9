/** A place of results that is away, and comes back later. */
import { expect } from "vitest";
import type { DeliveryObject } from "../../src/contract/delivery.ts";
import { FakeClock } from "./fake-clock.ts";
import { chatLines, startTestService } from "./service.ts";
import { startUpstream } from "./upstream.ts";

interface AwayPlace {
  readonly location: { readonly name: string; readonly [key: string]: unknown };
  /** What the delivery says meanwhile, or a matcher for it. */
  readonly message: string;
  readonly comeBack: () => void;
}

/** Delivers to a location that is away, lets it come back, and resolves to the id of the batch once its results have arrived. */
export async function expectToWait({ location, message, comeBack }: AwayPlace): Promise<string> {
  const clock = new FakeClock();
  await using upstream = await startUpstream();
  await using service = await startTestService({
    upstreamUrl: upstream.url,
    clock,
    config: { locations: [{ access: "write", ...location }] },
  });
  const { id } = await service.run(chatLines(1));
  const path = `/batches/${id}/deliveries`;
  const body = { location: location.name };
  const { id: delivery } = (await service.openai.post(path, { body })) as DeliveryObject;
  const tries = ["delivery.given_up", "delivery.attempt_failed"] as const;
  await Promise.race(tries.map((end) => service.events.reached(end, { delivery })));
  expect(await service.openai.get(`${path}/${delivery}`)).toMatchObject({
    status: "pending",
    error: { code: "unavailable", message },
  });
  comeBack();
  clock.advance(60_000);
  await service.events.reached("delivery.delivered", { delivery });
  return id;
}
