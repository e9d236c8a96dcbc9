/**
 * Makes the bundle from which the checks start their servers (`test/support/bundle.ts`). Loaded before the program
 * (`node --import`), because its modules read the place of the bundle as they load.
 */
import { setup } from "../test/support/bundle.ts";

await setup();
