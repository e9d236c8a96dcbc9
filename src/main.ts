#!/usr/bin/env node
import { runCli } from "./cli.ts";

process.exit(await runCli(process.argv));
