import { BodyModelReading } from "../../src/batch/body-model.ts";

/** Returns the estimate of the answer to a request, as the server makes it. */
export function answerTokens(body: Buffer, stepBytes = body.length): number {
  const reading = new BodyModelReading();
  reading.begin(body);
  while (!reading.advance(stepBytes));
  const found = reading.result();
  if (!found.ok) throw new Error("the body is no JSON object");
  return found.answerTokens;
}
