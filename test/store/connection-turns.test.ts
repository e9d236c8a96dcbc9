import { expect, test } from "vitest";
import { systemClock } from "../../src/clock.ts";
import { ownWork, workFor } from "../../src/resources/client-work.ts";
import { ConnectionTurns } from "../../src/store/postgres/connection-turns.ts";

test("the work of the process has the next free connection beside clients that wait for as many as there are", async () => {
  const total = 8;
  const turns = new ConnectionTurns({ total, waitMs: 60_000, clock: systemClock });
  const takenBy = (project: string) => workFor(project, () => turns.take());
  const held = await Promise.all(Array.from({ length: total }, (_, n) => takenBy(`a${n}`)));
  const got: string[] = [];
  const waiting = [
    ...Array.from({ length: total }, (_, n) =>
      takenBy(`b${n}`).then((each) => {
        got.push("client");
        return each;
      }),
    ),
    ownWork(() => turns.take()).then((each) => {
      got.push("process");
      return each;
    }),
  ];
  held.pop()?.[Symbol.dispose]();
  await Promise.any(waiting);
  expect(got).toEqual(["process"]);
  for (const each of held) each[Symbol.dispose]();
  for (const each of waiting) (await each)[Symbol.dispose]();
});
