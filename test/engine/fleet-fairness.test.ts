/** Fair shares between projects over several workers, each a process, on one PostgreSQL. */
import OpenAI from "openai";
import { describe, expect, test } from "vitest";
import { submitLines } from "../support/batches.ts";
import { Fleet, type Member } from "../support/fleet.ts";
import { forAllTests } from "../support/for-all-tests.ts";
import { query, sharePostgres } from "../support/postgres.ts";
import { chatLine } from "../support/service.ts";

const postgres = forAllTests(await sharePostgres("the fair shares of projects"));

const PROJECTS = ["large", "small"] as const;
type Project = (typeof PROJECTS)[number];
const keyOf = (project: Project) => `key-of-the-${project}-project`;
const config = {
  auth: { keys: PROJECTS.map((project) => ({ name: project, key: keyOf(project), project })) },
  projects: [{ name: "small", weight: 2 }],
};

const clientOf = ({ url }: Member, project: Project) =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey: keyOf(project), maxRetries: 0 });

/** Lines whose requests show their project. */
const linesOf = (project: Project, count: number, delayMs: number) =>
  Array.from({ length: count }, (_, i) =>
    chatLine(`${project}-${i}`, `[[delay ${delayMs}]] Say ${i}`),
  );

describe.skipIf(postgres === null)("projects", () => {
  test("have shares by weight of an upstream over four workers, however many batches each has", async () => {
    await using fleet = new Fleet({ databaseUrl: await postgres!.createDatabase(), config });
    const upstream = await fleet.upstream();
    const fields = { max_concurrency: 32, min_concurrency: 32, interactive_reserve: 0 };
    const api = await fleet.api();
    const sizes: [Project, number][] = [
      ...Array.from({ length: 4 }, (): [Project, number] => ["large", 1_200]),
      ["small", 4_000],
    ];
    // The work is there before the workers are, so all of them begin with both projects.
    for (const [project, count] of sizes) {
      await submitLines(clientOf(api, project), linesOf(project, count, 40));
    }
    await Promise.all(Array.from({ length: 4 }, () => fleet.worker({ upstream, fields })));
    const [skipped, measured] = [1_500, 2_000];
    await upstream.reached(skipped + measured);

    const users = upstream.seen.filter(({ method }) => method === "POST").map(({ user }) => user);
    const counted = users.slice(skipped, skipped + measured);
    const ofSmall = counted.filter((user) => user.startsWith("small-")).length;
    // Without weights it would be a half, by batches a fifth, and in the order of deadlines nothing or all. A busy machine
    // gives up to 0.86 where a worker stood still for a while.
    expect(ofSmall / measured).toBeGreaterThan(0.57);
    expect(ofSmall / measured).toBeLessThan(0.95);
  });

  test("take turns in validation over all workers", async () => {
    const databaseUrl = await postgres!.createDatabase();
    await using fleet = new Fleet({ databaseUrl, config });
    const upstream = await fleet.upstream();
    upstream.hold();
    const api = await fleet.api();
    const many = clientOf(api, "large");
    for (let i = 0; i < 24; i++) await submitLines(many, linesOf("large", 20, 0));
    const { id } = await submitLines(clientOf(api, "small"), linesOf("small", 20, 0));
    await Promise.all([fleet.worker({ upstream }), fleet.worker({ upstream })]);

    const inOrder =
      "select id from batches where in_progress_at_ms is not null order by in_progress_at_ms";
    const started = async () => (await query(databaseUrl, inOrder)).map((row) => row["id"]);
    await expect.poll(async () => (await started()).length).toBe(25);
    const order = await started();
    // Each worker validates three side by side, and the first may all be of the same project.
    expect(order.indexOf(id)).toBeLessThan(12);
  });
});
