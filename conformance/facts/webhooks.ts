/** Section 9: webhooks. */
import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import OpenAI from "openai";
import type { ReceivedEvent } from "../../test/support/receiver.ts";
import { type Context, KEYS, PLAIN_SECRET, WEBHOOK_SECRET } from "../context.ts";
import { isSeconds } from "../expect.ts";
import { type Check, type Section, strong } from "../fact.ts";
import { line } from "../lines.ts";
import { type Batch, type Json, until } from "../server.ts";

const WEBHOOKS = "test/webhooks/webhooks.test.ts";

const eventOf = ({ body }: ReceivedEvent) =>
  JSON.parse(body) as Json & { data: { id: string; x_batchd?: Json } };

/** Returns the events that the endpoint received about a batch. */
async function delivered({ receiver }: Context, { id }: Batch): Promise<ReceivedEvent> {
  const findEvent = async () => receiver.seen.find((event) => eventOf(event).data.id === id);
  return (await until(`a webhook about ${id}`, findEvent, Boolean)) as ReceivedEvent;
}

const clean = async (context: Context) => delivered(context, (await context.stories.clean()).final);

/** The clients refuse an event that is older than five minutes, which one of a story may be on a busy machine. */
const fresh = async (context: Context) =>
  delivered(context, await context.main.run([line("fresh")]));

const reports =
  (type: string, story: (context: Context) => Promise<{ final: Batch }>): Check =>
  async (context) => {
    const event = eventOf(await delivered(context, (await story(context)).final));
    assert.equal(event["type"], type);
  };

const signature = (key: Buffer, { headers, body }: ReceivedEvent) => {
  const signed = `${headers["webhook-id"]}.${headers["webhook-timestamp"]}.${body}`;
  return `v1,${createHmac("sha256", key).update(signed).digest("base64")}`;
};

/** Two attempts at one event of the project `blue`. The first one was answered with a 500. */
async function twoTries({ keyed, blueReceiver }: Context): Promise<ReceivedEvent[]> {
  if (blueReceiver.seen.length === 0) await failFirstDelivery({ keyed, blueReceiver });
  await blueReceiver.reached(2);
  return blueReceiver.seen.slice(0, 2);
}

/** The check begins early, because the second attempt comes only after some seconds. */
export async function failFirstDelivery({
  keyed,
  blueReceiver,
}: Pick<Context, "keyed" | "blueReceiver">): Promise<void> {
  blueReceiver.reactNext({ status: 500 });
  const form = new FormData();
  form.set("purpose", "batch");
  form.set("file", new Blob([`${line("one")}\n`]), "input.jsonl");
  const headers = { authorization: `Bearer ${KEYS.blue}` };
  const file = await keyed.call("POST", "/v1/files", { body: form, headers });
  const body = {
    input_file_id: file.json["id"],
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  };
  await keyed.post("/v1/batches", body, headers);
  await blueReceiver.reached(1);
}

export const webhooks: Section = {
  number: "9",
  title: "Webhooks",
  facts: [
    strong.http("9-post", "An event is a POST of JSON to the URL", async (context) => {
      const { method, path, headers } = await clean(context);
      assert.deepEqual(
        [method, path, headers["content-type"]],
        ["POST", "/hook", "application/json"],
      );
    }),
    strong.http(
      "9-body",
      'The body is `{"object":"event","id":"evt_…","type":…,"created_at":…,"data":{"id":"batch_…"}}`, and `x_batchd` in `data` is all that batchd adds',
      async (context) => {
        const { final } = await context.stories.clean();
        const event = eventOf(await clean(context));
        assert.deepEqual(Object.keys(event), ["object", "id", "type", "created_at", "data"]);
        assert.match(String(event["id"]), /^evt_\w+$/);
        const { x_batchd: extension, ...data } = event.data;
        assert.deepEqual([event["object"], data], ["event", { id: final.id }]);
        assert.deepEqual(extension, { request_counts: final["request_counts"] });
      },
    ),
    strong.http(
      "9-created-at",
      "`created_at` is the time at which the batch became final",
      async (context) => {
        const { final } = await context.stories.clean();
        assert.equal(eventOf(await clean(context))["created_at"], final["completed_at"]);
      },
    ),
    strong.http(
      "9-completed",
      "A completed batch is `batch.completed`, one whose lines all failed too",
      async (context) => {
        await reports("batch.completed", ({ stories }) => stories.clean())(context);
        await reports("batch.completed", ({ stories }) => stories.allBad())(context);
      },
    ),
    strong.http(
      "9-failed",
      "A failed batch is `batch.failed`",
      reports("batch.failed", ({ stories }) => stories.faulty()),
    ),
    strong.http(
      "9-cancelled",
      "A cancelled batch is `batch.cancelled`",
      reports("batch.cancelled", ({ stories }) => stories.cancelledWhileRunning()),
    ),
    strong.test("9-expired", "An expired batch is `batch.expired`", {
      file: WEBHOOKS,
      title: "a batch whose window ends is told as expired, with the time at which it was",
    }),
    strong.http(
      "9-once",
      "Each batch is told once when its receiver answers 2xx",
      async (context) => {
        await clean(context);
        const { final } = await context.stories.clean();
        const events = context.receiver.seen.filter((event) => eventOf(event).data.id === final.id);
        assert.equal(events.length, 1);
      },
    ),
    strong.http("9-id", "`webhook-id` is there, and begins with `wh_`", async (context) => {
      assert.match((await clean(context)).headers["webhook-id"] ?? "", /^wh_\w+$/);
    }),
    strong.http(
      "9-timestamp",
      "`webhook-timestamp` is the time of the attempt in Unix seconds",
      async (context) => {
        assert.ok(isSeconds(Number((await clean(context)).headers["webhook-timestamp"])));
      },
    ),
    strong.http(
      "9-signature",
      "`webhook-signature` is `v1,` and the padded base64 of HMAC-SHA256 over id, timestamp and body; the key is the decoded rest of the secret after `whsec_`",
      async (context) => {
        const event = await clean(context);
        const key = Buffer.from(WEBHOOK_SECRET.slice("whsec_".length), "base64");
        assert.equal(event.headers["webhook-signature"], signature(key, event));
      },
    ),
    strong.http(
      "9-plain-secret",
      "A secret without `whsec_` is the key as it stands",
      async (context) => {
        const [event] = (await twoTries(context)) as [ReceivedEvent];
        assert.equal(
          event.headers["webhook-signature"],
          signature(Buffer.from(PLAIN_SECRET), event),
        );
      },
    ),
    strong.test("9-vector", "The published test vector gets its signature", {
      file: "test/webhooks/sender.test.ts",
      title: "the signature is the one of the published example",
    }),
    strong.node("9-node", "The Node client verifies and parses it", async (context) => {
      const { headers, body } = await fresh(context);
      const client = new OpenAI({ apiKey: "unused" });
      const event = await client.webhooks.unwrap(body, new Headers(headers), WEBHOOK_SECRET);
      assert.equal(event.type, "batch.completed");
    }),
    strong.python("9-python", "and so does the Python client", {
      name: "verify_webhook",
      args: async (context) => {
        const { headers, body } = await fresh(context);
        return { headers, body, secret: WEBHOOK_SECRET };
      },
    }),
    strong.http("9-retry", "An answer that is not 2xx is tried again", async (context) => {
      const [first, second] = (await twoTries(context)) as [ReceivedEvent, ReceivedEvent];
      assert.equal(first.body, second.body);
    }),
    strong.http("9-retry-id", "A retry has the `webhook-id` of the first try", async (context) => {
      const [first, second] = (await twoTries(context)) as [ReceivedEvent, ReceivedEvent];
      assert.equal(first.headers["webhook-id"], second.headers["webhook-id"]);
    }),
    strong.http(
      "9-retry-signature",
      "and a timestamp and a signature of its own",
      async (context) => {
        const [first, second] = (await twoTries(context)) as [ReceivedEvent, ReceivedEvent];
        const [early, late] = [first, second].map(({ headers }) =>
          Number(headers["webhook-timestamp"]),
        );
        assert.ok(Number(late) > Number(early));
        assert.equal(
          second.headers["webhook-signature"],
          signature(Buffer.from(PLAIN_SECRET), second),
        );
      },
    ),
    strong.test("9-back-off", "Retries come ever more slowly", {
      file: "test/webhooks/retry.test.ts",
      title: "waits double from five seconds to an hour",
    }),
    strong.test("9-72-hours", "for up to 72 hours", {
      file: "test/webhooks/retry.test.ts",
      title: "there is no retry later than 72 hours after the event",
    }),
    strong.test("9-redirects", "Redirects, other statuses and silence are failures", {
      file: WEBHOOKS,
      title:
        "after $failure the event is sent again under the same id, with a fresh time and signature",
    }),
    strong.http(
      "9-projects",
      "An endpoint of a project is told of that project's batches alone",
      async (context) => {
        await twoTries(context);
        const { id } = await context.keyed.run([line("red")]);
        await twoTries(context);
        const events = context.blueReceiver.seen.map((event) => eventOf(event).data.id);
        assert.equal(events.includes(id), false);
      },
    ),
  ],
};
