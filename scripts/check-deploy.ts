/**
 * Checks what is in `deploy/` with the tools of its own world: `npm run check:deploy`. It runs every tool that is in PATH, and
 * names those that are missing. Without a tool its check cannot pass, unless `--allow-missing` says so.
 */
import { spawnSync } from "node:child_process";
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const DEPLOY = fileURLToPath(new URL("../deploy", import.meta.url));
const CHART = join(DEPLOY, "helm");
const MONITORING = join(DEPLOY, "monitoring");
const KUBERNETES = "1.34.0";
const VALUES = ["values.yaml", "ci/everything-values.yaml"];

interface Tool {
  readonly name: string;
  readonly install: string;
  /** Throws with the output of the tool if something is wrong. */
  check(scratch: string): void;
}

function run(command: string, ...args: string[]): string {
  const { status, stdout, stderr, error } = spawnSync(command, args, { encoding: "utf8" });
  if (error !== undefined) throw error;
  if (status !== 0) throw new Error(`${command} ${args.join(" ")}:\n${stdout}${stderr}`);
  return stdout;
}

const rendered = (values: string) =>
  run(
    ...(["helm", "template", "batchd", CHART] as const),
    "--values",
    join(CHART, values),
    "--kube-version",
    KUBERNETES,
  );

const TOOLS: readonly Tool[] = [
  {
    name: "promtool",
    install: "a package `prometheus`, or go install github.com/prometheus/prometheus/cmd/promtool",
    check() {
      run("promtool", "check", "rules", join(MONITORING, "alerts.yaml"));
      run("promtool", "test", "rules", join(MONITORING, "alerts.test.yaml"));
    },
  },
  {
    name: "helm",
    install: "go install helm.sh/helm/v3/cmd/helm@v3.19.0",
    check() {
      for (const values of VALUES) {
        run("helm", "lint", "--strict", CHART, "--values", join(CHART, values));
        rendered(values);
      }
    },
  },
  {
    name: "kubernetes-validate",
    install: "pip install kubernetes-validate",
    check(scratch) {
      for (const values of VALUES) {
        const path = join(scratch, "rendered.yaml");
        // The schema of the custom resource is not part of Kubernetes.
        const resources = rendered(values).split(/^---$/m);
        const known = resources.filter((each) => !each.includes("kind: ServiceMonitor"));
        writeFileSync(path, known.join("---"));
        run("kubernetes-validate", "--strict", "-k", KUBERNETES, path);
      }
    },
  },
  {
    name: "nginx",
    install: "a package `nginx`",
    check(scratch) {
      const servers = readFileSync(join(DEPLOY, "nginx/batchd.conf"), "utf8");
      // nginx refuses names that it cannot look up.
      writeFileSync(join(scratch, "batchd.conf"), servers.replaceAll(/api-\d/g, "127.0.0.1"));
      const main = join(scratch, "nginx.conf");
      const logs = `pid ${scratch}/pid; error_log ${scratch}/log;`;
      writeFileSync(main, `${logs} events {} http { include ${scratch}/batchd.conf; }`);
      run("nginx", "-t", "-q", "-c", main);
    },
  },
  {
    name: "systemd-analyze",
    install: "a system with systemd",
    check(scratch) {
      for (const name of ["batchd.service", "batchd@.service"]) {
        const path = join(scratch, name);
        copyFileSync(join(DEPLOY, "systemd", name), path);
        run("systemd-analyze", "verify", path);
      }
    },
  },
];

const isMissing = (error: unknown) => (error as NodeJS.ErrnoException).code === "ENOENT";

/** Returns whether the check passed; null if a tool is missing. */
function checkWith({ name, install, check }: Tool): boolean | null {
  const scratch = mkdtempSync(join(tmpdir(), "batchd-deploy-"));
  try {
    check(scratch);
    process.stdout.write(`ok ${name}\n`);
    return true;
  } catch (error) {
    if (!isMissing(error)) {
      process.stderr.write(`FAILED ${name}: ${(error as Error).message}\n`);
      return false;
    }
    process.stderr.write(`MISSING ${name}, so its check was left out: ${install}\n`);
    return null;
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

const results = TOOLS.map(checkWith);
const mayMiss = process.argv.includes("--allow-missing");
process.exitCode = results.every((passed) => passed ?? mayMiss) ? 0 : 1;
