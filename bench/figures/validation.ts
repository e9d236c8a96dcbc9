/** Measures how many bytes of small lines one core validates in a second. */
import { mkdir } from "node:fs/promises";
import { type Figure, MB } from "../figure.ts";
import { smallLineCountOf, writeInput } from "../inputs.ts";
import type { Sizes } from "../sizes.ts";
import { Stage } from "../stage.ts";

const VALIDATION_LOOP = new URL("../validation-loop.ts", import.meta.url);

export async function measureValidation({ validationBytes }: Sizes): Promise<Figure[]> {
  await using stage = await Stage.open();
  await mkdir(stage.path("blobs"));
  const lineCount = smallLineCountOf(validationBytes);
  await writeInput(stage.path("blobs/input"), { lineCount });
  const args = [stage.path("blobs"), "input"];
  const bytesPerSecond = await stage.children.measure<number>(VALIDATION_LOOP, args);
  return [
    {
      name: "validation",
      title: `Validation of ${Math.round(validationBytes / MB)} MB of small lines, one core`,
      measured: bytesPerSecond / MB,
      unit: "MB/s",
      hold: { atLeast: 200 },
    },
  ];
}
