/** Section 8: the requests that uploads refuse. */
import { accepted, refused } from "../expect.ts";
import { type Check, type Fact, strong, weak } from "../fact.ts";
import type { Answer, Server } from "../server.ts";
import { complete, completed, create, partId, sendPart, withParts } from "./upload-calls.ts";

const refusesCompletion =
  (attempt: (main: Server) => Promise<Answer>, message: RegExp, param?: string): Check =>
  async ({ main }) =>
    refused(await attempt(main), {
      status: 400,
      message,
      ...(param === undefined ? {} : { param }),
    });

export const uploadRefusals: readonly Fact[] = [
  strong.http(
    "8-sum",
    "Parts that do not add up to `bytes`: 400",
    refusesCompletion(
      async (main) => {
        const { id, parts } = await withParts(main);
        return complete(main, id, parts.slice(0, 1));
      },
      /bytes/,
      "part_ids",
    ),
  ),
  weak.http(
    "8-part-twice",
    "A part that is listed twice: 400",
    refusesCompletion(
      async (main) => {
        const { id, parts } = await withParts(main);
        return complete(main, id, [...parts, ...parts.slice(0, 1)]);
      },
      /more than once/,
      "part_ids",
    ),
  ),
  weak.http(
    "8-foreign-part",
    "A part of another upload: 400",
    refusesCompletion(
      async (main) => {
        const [mine, other] = [await withParts(main), await withParts(main)];
        return complete(main, mine.id, other.parts);
      },
      /does not belong/,
      "part_ids",
    ),
  ),
  weak.http(
    "8-part-after-complete",
    "A part after `complete`: 400",
    refusesCompletion(async (main) => {
      const { id } = await completed(main);
      return sendPart(main, String(id), "late");
    }, /already completed/),
  ),
  weak.http(
    "8-cancel-after-complete",
    "`cancel` after `complete`: 400",
    refusesCompletion(async (main) => {
      const { id } = await completed(main);
      return main.call("POST", `/v1/uploads/${id}/cancel`);
    }, /already completed/),
  ),
  weak.http(
    "8-complete-after-cancel",
    "`complete` after `cancel`: 400",
    refusesCompletion(async (main) => {
      const { id, parts } = await withParts(main);
      await main.call("POST", `/v1/uploads/${id}/cancel`);
      return complete(main, id, parts);
    }, /already cancelled/),
  ),
  weak.http(
    "8-content-checks",
    "The file gets the checks of `POST /v1/files`: what is not JSONL is refused",
    refusesCompletion(async (main) => {
      const id = String(accepted(await create(main, { bytes: 5 }))["id"]);
      return complete(main, id, [await partId(main, id, "notes")]);
    }, /^Invalid file format for Batch API\. Must be \.jsonl \(HINT: /),
  ),
  weak.http("8-unknown", "An unknown upload: 404 on every route", async ({ main }) => {
    const answers = [
      await sendPart(main, "upload_x", "x"),
      await complete(main, "upload_x", []),
      await main.call("POST", "/v1/uploads/upload_x/cancel"),
    ];
    for (const answer of answers) {
      refused(answer, { status: 404, message: /upload_x/, param: "id" });
    }
  }),
];
