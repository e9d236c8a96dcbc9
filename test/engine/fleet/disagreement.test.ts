/** Workers with different upstreams on one PostgreSQL, each a process. */
import { readdirSync } from "node:fs";
import { describe, expect, test } from "vitest";
import {
  Disagreement,
  differences,
  differingSettings,
} from "../../../src/engine/fleet/disagreement.ts";
import { submitLines } from "../../support/batches.ts";
import { Events } from "../../support/events.ts";
import { Fleet, type Member } from "../../support/fleet.ts";
import { forAllTests } from "../../support/for-all-tests.ts";
import { sharePostgres } from "../../support/postgres.ts";
import { Scrape } from "../../support/prometheus.ts";
import { startReceiver } from "../../support/receiver.ts";
import { hasS3Server, newPrefix, startS3Server } from "../../support/s3-server.ts";
import { chatLine } from "../../support/service.ts";
import { temporaryFolder } from "../../support/store-builders.ts";

const postgres = forAllTests(await sharePostgres("workers with different upstreams"));

const linesFor = (...models: string[]) =>
  Array.from({ length: 40 }, (_, i) =>
    chatLine(`line-${i + 1}`, `Say ${i + 1}`, { model: models[i % models.length] }),
  );

const ended = async ({ openai }: Member, { id }: { readonly id: string }) => {
  const found = async () => (await openai.batches.retrieve(id)).status;
  await expect.poll(found).toMatch(/^(completed|failed)$/);
  const { status, errors, request_counts } = await openai.batches.retrieve(id);
  return { status, errors: errors?.data ?? [], completed: request_counts?.completed };
};

const modelsAt = async ({ openai }: Member) =>
  (await openai.models.list()).data.map(({ id }) => id);

describe("replicas", () => {
  const at = (owner: string, ...targets: string[]) => ({
    owner,
    isWorker: true,
    targets: targets.map((each) => {
      const [name = "", settings = "", limit] = each.split(/[=<]/);
      return { name, settings, ...(limit !== undefined && { limit: Number(limit) }) };
    }),
  });

  test("differ in the upstreams that one lacks, or that have other settings", () => {
    expect(differences([])).toEqual([]);
    expect(differences([at("one", "gpu=1"), at("two", "gpu=1")])).toEqual([]);
    expect(differences([at("one", "gpu=1", "cpu=1"), at("two", "gpu=2")])).toEqual([
      "cpu is missing at two",
      "gpu differs between one, two",
    ]);
    expect(differences([at("one", "gpu=1<8"), at("two", "gpu=1<4")])).toEqual([
      "gpu differs between one, two",
    ]);
    // A replica of an older version reports no limit.
    expect(differences([at("one", "gpu=1<8"), at("two", "gpu=1")])).toEqual([]);
  });

  test("differ in settings that are to be the same, with those named that agree", () => {
    const having = (owner: string, hashes?: Record<string, string>) => ({
      owner,
      isWorker: true,
      ...(hashes !== undefined && { common: { hashes } }),
    });
    const [one, two] = [{ prices: "1", auth: "1" }, { prices: "2" }];
    expect(differingSettings([having("a", one), having("b", one)])).toEqual([]);
    // A worker asks for no keys, and an older version does not say what it has.
    expect(
      differingSettings([having("d", two), having("a", one), having("c"), having("b", one)]),
    ).toEqual(["prices differs: a, b / d"]);
  });

  test("are reported once, when they differ in two looks in a row, and when they agree again", () => {
    const events = new Events();
    const disagreement = new Disagreement(events.log);
    const same = [at("one", "gpu=1"), at("two", "gpu=1")];
    const other = [at("one", "gpu=1"), at("two", "gpu=2")];
    for (const look of [same, other, same, other, other, other, same, same, same]) {
      disagreement.check(look);
    }
    expect(events.all.map(({ event }) => event)).toEqual(["replicas.disagree", "replicas.agree"]);
  });
});

describe.skipIf(postgres === null)("workers with different places to tell", () => {
  test("leave the events and the results of a batch to the one that knows the place, and a warning names what differs", async () => {
    await using receiver = await startReceiver();
    using share = temporaryFolder("batchd-share-");
    const secret = "a secret of the receiver";
    const deliveries = { credentials_key: "x".repeat(32), allow_private_hosts: ["127.0.0.1"] };
    const places = {
      deliveries,
      webhooks: {
        endpoints: [{ name: "results", url: receiver.url, secret }],
        allow_private_hosts: ["127.0.0.1"],
      },
      locations: [{ name: "share", kind: "folder", path: share.path, access: "write" }],
    };
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase() });
    const api = await fleet.api({ config: { deliveries, locations: places.locations } });
    const upstream = await fleet.upstream();
    const knowing = await fleet.worker({ upstream, config: places });
    const others = [await fleet.worker({ upstream }), await fleet.worker({ upstream })];
    await api.batchd.loggedLike(
      /"settings":\["deliveries differs: .* \/ .*","locations differs: .* \/ .*","webhooks differs: .* \/ .*"\].*replicas\.disagree/,
    );

    await using refusing = await startReceiver();
    refusing.reactAlways({ status: 403 });
    const endpoint = new URL(refusing.url).origin;
    const bucket = { kind: "s3", bucket: "results", region: "us-east-1", endpoint };
    const credentials = { access_key_id: "id", secret_access_key: "secret" };
    const x_batchd = { deliver: [{ location: "share" }, { ...bucket, ...credentials }] };
    const ids: string[] = [];
    for (let n = 1; n <= 10; n++) {
      ids.push((await submitLines(api.openai, linesFor("small"), { x_batchd })).id);
    }
    await receiver.reached(ids.length);
    const told = receiver.seen.map(({ body }) => JSON.parse(body).data.id as string);
    expect(told.toSorted()).toEqual(ids.toSorted());
    await expect.poll(() => readdirSync(share.path).toSorted()).toEqual(ids.toSorted());
    // No other could have asked the bucket.
    for (const id of ids) {
      const path = `/batches/${id}/deliveries`;
      const statuses = async () =>
        ((await api.openai.get(path)) as { data: { status: string }[] }).data
          .map(({ status }) => status)
          .toSorted();
      await expect.poll(statuses).toEqual(["delivered", "failed"]);
    }
    for (const { batchd } of [knowing, ...others]) {
      expect((await batchd.kill("SIGTERM")).stderr).not.toContain("attempt_failed");
    }
  });
});

test.skipIf(postgres === null || !hasS3Server())(
  "a worker whose bucket is at another address does not start beside others, also before there is a file",
  async () => {
    await using s3 = await startS3Server();
    await using other = await startS3Server();
    const prefix = newPrefix();
    const databaseUrl = await postgres!.createDatabase();
    await using fleet = new Fleet({ databaseUrl, storage: s3.storage({ prefix }) });
    await fleet.api();
    await expect(fleet.worker({ config: { storage: other.storage({ prefix }) } })).rejects.toThrow(
      /none of them has used s3:\/\/tests\/\S+: correct storage\.endpoint/,
    );
    await fleet.worker();
  },
);

describe.skipIf(postgres === null)("workers that serve different models", () => {
  test("validate for each other, get the chunks of their own models, and are named in one warning", async () => {
    const config = { limits: { allow_mixed_models: true } };
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase(), config });
    const api = await fleet.api();
    const one = await fleet.worker({ fields: { name: "one", models: ["small"] } });
    const two = await fleet.worker({ fields: { name: "two", models: ["large"] } });
    await api.batchd.loggedLike(/replicas\.disagree/);
    // The API server has no upstream of its own.
    await expect.poll(async () => (await modelsAt(api)).toSorted()).toEqual(["large", "small"]);

    const served = [["small"], ["large"], ["small", "large"], ["large", "small"], ["large"]];
    const batches = await Promise.all(
      served.map((models) => submitLines(api.openai, linesFor(...models))),
    );
    for (const batch of batches) {
      expect(await ended(api, batch)).toEqual({ status: "completed", errors: [], completed: 40 });
    }
    const modelsSeen = ({ upstream }: typeof one) =>
      new Set(upstream.seen.filter(({ method }) => method === "POST").map(({ model }) => model));
    expect([modelsSeen(one), modelsSeen(two)]).toEqual([new Set(["small"]), new Set(["large"])]);

    const unheardOf = await ended(api, await submitLines(api.openai, linesFor("unheard-of")));
    expect(unheardOf).toMatchObject({ status: "failed" });
    expect(unheardOf.errors[0]).toMatchObject({ code: "model_not_found" });

    const logs = [];
    for (const { batchd } of [one, two, api]) logs.push((await batchd.kill("SIGTERM")).stderr);
    const warnings = logs.join("").match(/^.*replicas\.disagree.*$/gm) ?? [];
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toMatch(/one is missing at .*two is missing at /);
  });

  test("share the smallest of their limits of an upstream, so that each of them works", async () => {
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase() });
    const api = await fleet.api();
    const fields = { min_concurrency: 4, interactive_reserve: 0 };
    const wide = await fleet.worker({
      fields: { ...fields, models: ["small"], max_concurrency: 64 },
    });
    const narrow = await fleet.worker({
      fields: { ...fields, models: ["large"], max_concurrency: 4 },
    });
    const limitAt = async ({ url }: Member) =>
      new Scrape(await (await fetch(`${url}/metrics`)).text()).value(
        "batchd_upstream_concurrency_limit",
        { target: "model" },
      );
    await expect.poll(async () => (await limitAt(wide)) + (await limitAt(narrow))).toBe(4);
    await expect.poll(async () => (await modelsAt(api)).toSorted()).toEqual(["large", "small"]);
    expect(await ended(api, await submitLines(api.openai, linesFor("large")))).toMatchObject({
      status: "completed",
      completed: 40,
    });
  });
});
