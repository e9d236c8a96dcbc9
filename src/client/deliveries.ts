/** The commands on deliveries, which only batchd has. */
import { randomUUID } from "node:crypto";
import type { DeliveryObject } from "../contract/delivery.ts";
import type { ResultFormat } from "../contract/results.ts";
import { printable } from "../printable.ts";
import { complain, note, say, sayJson, sayTable } from "../terminal/lines.ts";
import { date } from "../words.ts";
import { EXIT } from "./exit-codes.ts";
import { CommandFailure } from "./failure.ts";
import { follow, type View } from "./follow.ts";
import { isPassing } from "./server.ts";
import type { JsonFlag, Session } from "./session.ts";

export interface DeliverFlags {
  readonly path?: string;
  readonly format?: ResultFormat;
  readonly wait?: boolean;
  readonly json?: boolean;
}

const WHAT = "deliveries";

export async function deliver(
  id: string,
  { location, path, format, wait, json }: DeliverFlags & { readonly location: string },
  session: Session,
): Promise<number> {
  const { server } = session;
  const body = { location, ...(path !== undefined && { path }), ...(format && { format }) };
  // A repeated request must not make a second delivery.
  const headers = { "idempotency-key": randomUUID() };
  const made = await server.extension(WHAT, id, (batch) =>
    server.openai.post<DeliveryObject>(`${batch}/deliveries`, { body, headers }),
  );
  const delivery = wait ? await ended(made, session) : made;
  if (delivery === null) {
    const seeing = server.command("deliveries", id);
    note(`\n${printable(`${made.id} goes on. To see it: ${seeing}`)}`);
    return EXIT.interrupted;
  }
  if (json) sayJson(delivery);
  else say(sentenceOf(delivery));
  if (delivery.status === "failed") {
    throw new CommandFailure(delivery.error?.message ?? "the results were not delivered");
  }
  return EXIT.done;
}

/** Asks until the delivery has ended, also while the server is away; resolves to null after Ctrl-C. */
function ended(
  { id, batch_id: batchId }: DeliveryObject,
  { server, clock, signal }: Session,
): Promise<DeliveryObject | null> {
  const path = `/batches/${encodeURIComponent(batchId)}/deliveries/${id}`;
  return follow({
    read: () => server.openai.get<DeliveryObject>(path),
    isOver: hasEnded,
    passing: (error) => (isPassing(error) ? server.explain(error) : null),
    view: troubleView(),
    clock,
    signal,
  });
}

/** Shows nothing but what keeps the server from answering, each problem once. */
function troubleView(): View<unknown> {
  let latest = "";
  return {
    show: () => {
      latest = "";
    },
    showTrouble: (problem) => {
      if (problem !== latest) complain(`${problem}; trying again`);
      latest = problem;
    },
    close: () => {},
  };
}

const hasEnded = ({ status }: DeliveryObject) => status === "delivered" || status === "failed";

const sentenceOf = ({ id, status, address }: DeliveryObject): string =>
  printable(address ? `${id} is at ${address}` : `${id} is ${status}`);

export async function listDeliveries(
  id: string,
  { json }: JsonFlag,
  { server }: Session,
): Promise<number> {
  const deliveries = await server.extension(WHAT, id, async (batch) => {
    const all: DeliveryObject[] = [];
    const path = `${batch}/deliveries`;
    for await (const each of server.list<DeliveryObject>(path, { limit: 100 })) all.push(each);
    return all;
  });
  if (json) for (const each of deliveries) sayJson(each);
  else if (deliveries.length === 0) note("No deliveries. batchd deliver BATCH LOCATION makes one.");
  else sayTable(["ID", "TO", "STATUS", "CREATED", "ADDRESS"], deliveries.map(rowOf));
  return EXIT.done;
}

const rowOf = (delivery: DeliveryObject): string[] => [
  delivery.id,
  delivery.location ?? `s3://${delivery.s3?.bucket}`,
  delivery.status,
  date(delivery.created_at),
  delivery.address ?? delivery.error?.message ?? "-",
];
