#!/usr/bin/env -S node --max-semi-space-size=12
import { runCli } from "./cli.ts";

process.exit(await runCli(process.argv));
