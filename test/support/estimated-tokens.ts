import { BodyModelReading } from "../../src/batch/body-model.ts";

/** Returns the estimates of a request and of its answer, as the server makes them. */
export function estimatedTokens(body: Buffer, stepBytes = body.length) {
  const reading = new BodyModelReading();
  reading.begin(body);
  while (!reading.advance(stepBytes));
  const found = reading.result();
  if (!found.ok) throw new Error("the body is no JSON object");
  const { inputTokens, answerTokens } = found;
  return { inputTokens, answerTokens };
}
