import OpenAI from "openai";
import { BatchdProcess } from "./process.ts";

/** A server in a process of its own, and a client that asks it once. */
export interface Served {
  readonly server: BatchdProcess;
  readonly url: string;
  readonly openai: OpenAI;
}

/** Starts `batchd serve`. Resolves once it accepts requests. */
export async function serve(
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
): Promise<Served> {
  const server = new BatchdProcess(["serve", ...args], env);
  const url = await server.listening();
  return {
    server,
    url,
    openai: new OpenAI({ baseURL: `${url}/v1`, apiKey: "test", maxRetries: 0 }),
  };
}
