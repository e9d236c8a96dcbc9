/** The first step of the build: removes the results of an earlier one, which may not belong to the package any more. */
import { rmSync } from "node:fs";

rmSync(new URL("../dist/", import.meta.url), { recursive: true, force: true });
