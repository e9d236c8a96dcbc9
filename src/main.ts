#!/usr/bin/env -S node --max-semi-space-size=8 --expose-gc
import { runCli } from "./cli.ts";

process.exit(await runCli(process.argv));
