#!/usr/bin/env -S node --max-semi-space-size=8
import { runCli } from "./cli.ts";

process.exit(await runCli(process.argv));
