/**
 * Holds what is in `deploy/` against the code. The tools of Kubernetes, Prometheus, nginx and systemd check the rest:
 * `npm run check:deploy`.
 */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { parse } from "yaml";
import { loadConfig, parseConfig } from "../src/config/config.ts";
import { ROLES } from "../src/config/role.ts";
import { METRICS } from "../src/telemetry/metric-table.ts";
import { Metrics } from "../src/telemetry/metrics.ts";
import { forAllTests } from "./support/for-all-tests.ts";
import { Scrape } from "./support/prometheus.ts";
import { pathsOfPages, routesOfApp } from "./support/routes.ts";
import { temporaryFolder } from "./support/store-builders.ts";

const ROOT = join(import.meta.dirname, "..");
const read = (path: string) => readFileSync(join(ROOT, path), "utf8");
const yaml = (path: string) => parse(read(path), { merge: true });
const packageJson = JSON.parse(read("package.json"));

const _scratch = forAllTests(temporaryFolder("batchd-deploy-")).path;

describe("monitoring", () => {
  /** The names of the process metrics that a server exports. */
  async function processMetrics(): Promise<ReadonlySet<string>> {
    const metrics = new Metrics();
    metrics.watchProcess();
    const snapshot = { heldBytes: {}, targets: [], openWork: null, nowMs: 0 };
    const { families } = new Scrape(await metrics.scrape(snapshot as never));
    return new Set(families.keys());
  }

  interface Use {
    readonly name: string;
    readonly labels: readonly string[];
  }

  /** Finds the names of metrics, with the labels that their selectors name. */
  const usesIn = (expression: string): Use[] =>
    [...expression.matchAll(/\b((?:batchd|nodejs|process)_\w+)(?:\{([^}]*)\})?/g)].map(
      ([, name = "", selector = ""]) => ({
        name,
        labels: [...selector.matchAll(/(\w+)\s*[=!]~?/g)].map(([, label = ""]) => label),
      }),
    );

  /** Labels that Prometheus adds to each series. */
  const ADDED = ["job", "instance"];

  const alerts = (): { alert: string; expr: string }[] =>
    yaml("deploy/monitoring/alerts.yaml").groups.flatMap(
      (group: { rules: unknown[] }) => group.rules,
    );

  interface Panel {
    readonly title: string;
    readonly targets?: readonly { readonly expr: string }[];
  }

  const panels = (): Panel[] => JSON.parse(read("deploy/monitoring/dashboard.json")).panels;

  test("alerts and dashboard ask for metrics and labels that a server exports", async () => {
    const known = new Map<string, readonly string[]>();
    for (const [name, { type, labels }] of Object.entries(METRICS)) {
      known.set(type === "histogram" ? `${name}_bucket` : name, labels);
    }
    const ofProcess = await processMetrics();
    const expressions = [
      ...alerts().map(({ expr }) => expr),
      ...panels().flatMap(({ targets = [] }) => targets.map(({ expr }) => expr)),
    ];
    const uses = expressions.flatMap(usesIn);
    expect(uses.length).toBeGreaterThan(50);
    for (const { name, labels } of uses) {
      if (ofProcess.has(name)) continue;
      expect(known.keys().toArray(), name).toContain(name);
      for (const label of labels) expect([...ADDED, ...(known.get(name) ?? [])]).toContain(label);
    }
  });

  test("the dashboard has every metric of batchd, and sums by labels that exist", () => {
    const text = JSON.stringify(panels());
    const labels = new Set([...ADDED, "le", ...Object.values(METRICS).flatMap((m) => m.labels)]);
    for (const name of Object.keys(METRICS)) expect(text).toContain(name);
    for (const [, list = ""] of text.matchAll(/\bby \(([^)]*)\)/g)) {
      for (const label of list.split(", ")) expect(labels).toContain(label);
    }
  });

  test("every alert has a test that it fires and one that it does not, and a line in the handbook", () => {
    const tests: { name: string }[] = yaml("deploy/monitoring/alerts.test.yaml").tests;
    const names = tests.map(({ name }) => name);
    const handbook = read("docs/operating.md");
    for (const { alert } of alerts()) {
      expect(names).toContain(`${alert} fires`);
      expect(names).toContain(`${alert} does not fire`);
      expect(handbook).toContain(`\`${alert}\``);
    }
  });
});

describe("units of systemd", () => {
  test.each(["batchd.service", "batchd@.service"])(
    "%s lets an audit log be written, and says how other folders are added",
    (name) => {
      const unit = read(`deploy/systemd/${name}`);
      expect(unit).toMatch(/^ProtectSystem=strict$/m);
      expect(unit).toMatch(/^LogsDirectory=batchd$/m);
      expect(unit).toContain("ReadWritePaths=");
      expect(read("docs/operating.md")).toContain("`ReadWritePaths=`");
    },
  );
});

describe("containers", () => {
  test("run the version of Node.js that the tests run on, and of the package", () => {
    const bases = [...read("Dockerfile").matchAll(/^FROM node:(\S+)-slim/gm)].map(([, v]) => v);
    expect(bases).toEqual([packageJson.devDependencies.node, packageJson.devDependencies.node]);
    const { version, appVersion } = yaml("deploy/helm/Chart.yaml");
    expect([version, appVersion]).toEqual([packageJson.version, packageJson.version]);
  });

  test("have in compose.yaml two servers of each role, with a configuration that batchd takes", () => {
    const { services } = yaml("deploy/compose.yaml");
    const roles = ["api-1", "api-2", "worker-1", "worker-2"].map(
      (name) => services[name].command.at(-1) as (typeof ROLES)[number],
    );
    expect(roles).toEqual(["api", "api", "worker", "worker"]);
    for (const name of ["api-1", "worker-1"]) {
      expect(services[name].image).toBe(`batchd:${packageJson.version}`);
      const env = Object.fromEntries(
        Object.keys(services[name].environment).map((n) => [n, `a-${n}`]),
      );
      const UPSTREAM_URL = "http://127.0.0.1:9/v1";
      const loaded = loadConfig(
        { config: join(ROOT, "deploy/batchd.yaml") },
        { ...env, UPSTREAM_URL },
      );
      expect(loaded).toMatchObject({ ok: true });
    }
    const named = read("deploy/compose.yaml").matchAll(/^\s*- \.\/(\S+?):|"\.\/(\S+?):/gm);
    const mounted = [...named].map(([, one, other]) => one ?? other);
    expect(mounted).toHaveLength(2);
    for (const path of mounted) expect(existsSync(join(ROOT, "deploy", path!)), path).toBe(true);
    const variables = read("deploy/compose.yaml").matchAll(/\$\{(\w+):/g);
    const example = read("deploy/example.env");
    for (const [, variable] of variables) expect(example).toContain(`${variable}=`);
  });

  test("have in compose.yaml one image, which one service builds and no registry is asked for", () => {
    const { services } = yaml("deploy/compose.yaml");
    interface Service {
      readonly image: string;
      readonly build?: string;
      readonly pull_policy?: string;
    }
    const ours = Object.values<Service>(services).filter(({ image }) =>
      image.startsWith("batchd:"),
    );
    expect(ours).toHaveLength(4);
    expect(ours.filter(({ build }) => build !== undefined)).toHaveLength(1);
    expect(ours.map((service) => service.pull_policy)).toEqual(ours.map(() => "never"));
  });

  test("behind nginx are those of compose.yaml", () => {
    const servers = read("deploy/nginx/batchd.conf").matchAll(/server (\S+):8080/g);
    expect([...servers].map(([, name]) => name)).toEqual(["api-1", "api-2"]);
  });

  test("get from the chart the address of its configuration, which the image would have them ignore", () => {
    const ofImage = [...read("Dockerfile").matchAll(/\b(BATCHD_(?:HOST|PORT))=/g)].map(
      ([, n]) => n,
    );
    expect(ofImage).toEqual(["BATCHD_HOST", "BATCHD_PORT"]);
    const pods = read("deploy/helm/templates/_helpers.tpl");
    const set = pods.matchAll(
      /name: (\w+), value: \{\{ \$root\.Values\.config\.(\S+) \| quote \}\}/g,
    );
    expect([...set].map(([, name, key]) => [name, key])).toEqual([
      ["BATCHD_HOST", "server.host"],
      ["BATCHD_PORT", "server.port"],
    ]);
  });

  test("are reached through the ingress of the chart with the API and every page, and without their metrics", () => {
    const [, list = ""] =
      /range list ((?:"\S+" )+)\}\}/.exec(read("deploy/helm/templates/services.yaml")) ?? [];
    const passed = new Set([...list.matchAll(/"(\S+)"/g)].map(([, path]) => path));
    const rootOf = (path: string) => `/${path.split("/")[1]}`;
    const served = routesOfApp().map((route) => rootOf(route.slice(route.indexOf("/"))));
    const pages = pathsOfPages().filter((path) => path !== "/*");
    const all = new Set([...served, ...pages.map(rootOf), "/openai", "/web"]);
    for (const inside of ["/metrics", "/health", "/ready"]) expect(all.delete(inside)).toBe(true);
    expect(passed).toEqual(all);
  });

  test("get from the chart what the configuration names by its path, in every pod", () => {
    const pods = ["_helpers.tpl", "migrations.yaml"].map((name) =>
      read(`deploy/helm/templates/${name}`),
    );
    const values = yaml("deploy/helm/values.yaml");
    for (const [list, own] of [
      [
        "volumes",
        /^ +emptyDir: \{\}\n +(\{\{- with (?:\$root)?\.Values\.volumes \}\}\n.*toYaml)?/gm,
      ],
      [
        "volumeMounts",
        /mountPath: \/data \}\n +(\{\{- with (?:\$root)?\.Values\.volumeMounts \}\}\n.*toYaml)?/gm,
      ],
    ] as const) {
      expect(values[list]).toEqual([]);
      for (const text of pods) expect([...text.matchAll(own)].at(-1)?.[1], list).toBeDefined();
    }
  });

  test("are one job for Prometheus under the chart, the job that the alerts ask for", () => {
    const services = read("deploy/helm/templates/services.yaml");
    const [, label] = /^ {2}jobLabel: (\S+)$/m.exec(services) ?? [];
    const [, selector = ""] =
      /define "batchd\.selector" -\}\}([\s\S]*?)\{\{- end/.exec(
        read("deploy/helm/templates/_helpers.tpl"),
      ) ?? [];
    expect(selector).toContain(`${label}: {{ default .Chart.Name .Values.nameOverride }}`);
    const { name } = yaml("deploy/helm/Chart.yaml");
    const jobs = [...read("deploy/monitoring/alerts.yaml").matchAll(/job="(\w+)"/g)].map(
      ([, job]) => job,
    );
    expect(new Set(jobs)).toEqual(new Set([name]));
  });

  test("get from the chart a configuration that batchd takes, and roles that it has", () => {
    const { config } = yaml("deploy/helm/values.yaml");
    const url = "postgres://batchd@db/batchd";
    expect(parseConfig({ ...config, database_url: url })).toMatchObject({ ok: true });
    const templates = readdirSync(join(ROOT, "deploy/helm/templates"));
    const text = templates.map((name) => read(`deploy/helm/templates/${name}`)).join("\n");
    for (const [, role] of text.matchAll(/"role" "(\w+)"/g)) expect(ROLES).toContain(role);
  });
});
