import { FAULT_CODES, NO_ANSWER_CODES } from "../src/batch/codes.ts";
import { CATALOGUE } from "../src/errors.ts";
import { table } from "./markdown.ts";

const codeTable = (codes: Readonly<Record<string, string>>): string =>
  table(
    ["`code`", "Meaning"],
    Object.entries(codes).map(([code, meaning]) => [`\`${code}\``, meaning]),
  );

const catalogueTable = (): string =>
  table(
    ["Status", "`type`", "`code`", "Meaning"],
    Object.values(CATALOGUE).map(({ status, type, code, meaning }) => [
      String(status),
      `\`${type}\``,
      code === null ? "null" : `\`${code}\``,
      meaning,
    ]),
  );

/** Returns the page of all errors that a client can meet, from the tables that the server itself uses. */
export const errorsPage =
  (): string => `This page is generated from the code by \`npm run generate\`.

# Errors

Things go wrong in three places: a request to the API is refused, the input file of a batch is refused, or one line
of a batch gets no good answer.

## Requests

A refused request is answered with a status and this body, in which all four keys are always present:

\`\`\`json
{"error": {"message": "No such File object: file-abc", "type": "invalid_request_error", "param": "id", "code": null}}
\`\`\`

${catalogueTable()}

## Input files

\`POST /v1/batches\` takes any input file and answers with a batch that is \`validating\`. What is wrong with the
file shows in \`errors.data[]\` of the batch, whose status is then \`failed\`; no line of it has run. Each entry
has a \`code\`, a \`message\`, the \`param\` it is about, and the \`line\` of the file, counted from 1
(null when it is about the whole file).

${codeTable(FAULT_CODES)}

## Lines

A line whose answer is not a 2xx ends in the error file of its batch. When the model server gave an answer, the
line has it as \`response\`, with its status and its own body, and \`error\` is null. Otherwise \`response\` is null and
\`error\` says why:

${codeTable(NO_ANSWER_CODES)}
`;
