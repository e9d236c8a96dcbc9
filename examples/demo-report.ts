/** Prints the report of the demo after the batch. */
import type { Batch } from "openai/resources/batches";
import { count, dim, heading, print, row, seconds, warn } from "./demo-screen.ts";

const SHOWN_IDS = ["ticket-48225", "explain-database-index", "invoice-INV-20342"];

/** A line of the input file. */
export interface Question {
  readonly custom_id: string;
  readonly body: { readonly messages: readonly { readonly content: string }[] };
}

/** A line of the output or the error file. */
export interface Answer {
  readonly custom_id: string;
  readonly response: {
    readonly status_code: number;
    readonly body: {
      readonly choices?: readonly { readonly message: { readonly content: string } }[];
      readonly error?: { readonly message: string };
    };
  } | null;
  readonly error: { readonly code: string; readonly message: string } | null;
}

export function showAnswers(questions: readonly Question[], answers: readonly Answer[]): void {
  heading("Three of the answers");
  for (const id of SHOWN_IDS) {
    const question = questions.find(({ custom_id }) => custom_id === id);
    const answer = answers.find(({ custom_id }) => custom_id === id);
    print(`\n  ${id}`);
    row("  asked", question?.body.messages.at(-1)?.content ?? "");
    row("  answered", answer?.response?.body.choices?.[0]?.message.content ?? "");
  }
}

export function showFailures(failures: readonly Answer[]): void {
  heading("The line that failed, and why");
  for (const { custom_id, response, error } of failures) {
    const reason = error?.message ?? response?.body.error?.message ?? "no reason given";
    print(`\n  ${custom_id}`);
    row("  status", warn(String(response?.status_code ?? error?.code)));
    row("  reason", reason);
  }
}

export async function showNumbers(
  batch: Batch,
  modelServerUrl: string,
  tookMs: number,
): Promise<void> {
  const stats = await fetch(new URL("/demo/stats", modelServerUrl));
  const { turned_away } = (await stats.json()) as { readonly turned_away: number };
  const { total = 0, completed = 0, failed = 0 } = batch.request_counts ?? {};
  const rate = Math.round((total / tookMs) * 1_000);
  heading("In numbers");
  print();
  row("lines", `${count(total)} = ${count(completed)} completed + ${count(failed)} failed`);
  row(
    "overload",
    `${turned_away} times the model server said 429; those lines waited and went out again`,
  );
  row(
    "tokens",
    `${count(batch.usage?.input_tokens ?? 0)} in, ${count(batch.usage?.output_tokens ?? 0)} out`,
  );
  const bound = dim("(the stand-in answers 8 at a time)");
  row("time", `${seconds(tookMs)} from upload to completed, ${count(rate)} lines/s ${bound}`);
}

/** Prints each path whole on a line of its own, so that it can be copied. */
export function showFiles(files: Readonly<Record<string, string>>): void {
  heading("On disk");
  print();
  for (const [label, path] of Object.entries(files)) row(label, path);
}

export function showNext(): void {
  heading("Next: the same with a real model");
  print();
  row("Ollama", "npm start -- --upstream http://localhost:11434/v1");
  row("vLLM", "npm start -- --upstream http://localhost:8000/v1");
  row("then", "point any OpenAI client at http://127.0.0.1:8080/v1; README.md has one to paste");
  print();
}
