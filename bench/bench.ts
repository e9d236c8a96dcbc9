/**
 * `npm run bench`: measures the figures that batchd promises to hold, each against a floor in the same run.
 *
 * It takes about five minutes and 5 GB of the temporary folder. `npm run bench -- --quick` takes a minute, with sizes
 * that are too small for a judgement. `npm run bench -- dispatch` takes one measurement alone. The output is a table,
 * and one JSON object as the last line. The exit code is 1 when a figure is missed. The bench needs Linux, where /proc
 * has the memory of a process.
 */
import { scriptOptions } from "../test/support/script-options.ts";
import { type Figure, isHeld } from "./figure.ts";
import { measureCopies } from "./figures/copies.ts";
import { measureDispatch } from "./figures/dispatch.ts";
import { measureFirstRequest } from "./figures/first-request.ts";
import { measureFleet } from "./figures/fleet.ts";
import { measureInFlight } from "./figures/in-flight.ts";
import { measureLargeFiles } from "./figures/large-files.ts";
import { measurePages } from "./figures/pages.ts";
import { measurePlaces } from "./figures/places.ts";
import { measureResent } from "./figures/resent.ts";
import { measureRestart } from "./figures/restart.ts";
import { measureSteady } from "./figures/steady.ts";
import { measureStore } from "./figures/store.ts";
import { measureThroughput } from "./figures/throughput.ts";
import { measureValidation } from "./figures/validation.ts";
import { printJson, printTable } from "./report.ts";
import { FULL, QUICK, type Sizes } from "./sizes.ts";
import { closeStages } from "./stage.ts";

const MEASUREMENTS: Readonly<Record<string, (sizes: Sizes) => Promise<Figure[]>>> = {
  throughput: measureThroughput,
  steady: measureSteady,
  pages: measurePages,
  resent: measureResent,
  "large-files": measureLargeFiles,
  validation: measureValidation,
  copies: measureCopies,
  "in-flight": measureInFlight,
  dispatch: measureDispatch,
  "first-request": measureFirstRequest,
  restart: measureRestart,
  store: measureStore,
  fleet: measureFleet,
  places: measurePlaces,
};

const USAGE = `npm run bench -- [--quick] [MEASUREMENT ...]
The measurements: ${Object.keys(MEASUREMENTS).join(", ")}`;

async function bench(): Promise<void> {
  const { values, positionals: chosen } = scriptOptions(USAGE, {
    allowPositionals: true,
    options: { quick: { type: "boolean", default: false } },
  });
  for (const name of chosen) {
    if (name in MEASUREMENTS) continue;
    process.stderr.write(`there is no measurement ${name}\n${USAGE}\n`);
    process.exitCode = 1;
    return;
  }
  const startedAtMs = performance.now();
  const figures: Figure[] = [];
  for (const [name, measure] of Object.entries(MEASUREMENTS)) {
    if (chosen.length > 0 && !chosen.includes(name)) continue;
    process.stderr.write(`  measuring ${name} …\n`);
    figures.push(...(await measure(values.quick ? QUICK : FULL)));
  }
  printTable(figures, values.quick);
  printJson(figures, values.quick, performance.now() - startedAtMs);
  if (!values.quick && figures.some((figure) => isHeld(figure) === false)) process.exitCode = 1;
}

/** Ends after Ctrl-C without leaving a process or a file behind. */
async function interrupt(): Promise<never> {
  await closeStages();
  process.exit(130);
}

process.once("SIGINT", () => void interrupt());
process.once("SIGTERM", () => void interrupt());

await bench();
