/** Checks the certificate files that a configuration names, before any connection relies on them. */
import { X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import type { Config } from "./schema.ts";

const PEM_CERTIFICATE = /-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----/g;

/** Returns one sentence for each file that cannot be used. */
export const certificateProblems = ({ upstreams, database }: Config): string[] =>
  [
    { key: "database.ca_file", path: database.ca_file },
    ...upstreams.map(({ ca_file: path }, i) => ({ key: `upstreams[${i}].ca_file`, path })),
  ].flatMap(({ key, path }) => {
    const problem = path === undefined ? null : problemWith(path);
    return problem === null ? [] : [`${key}: ${problem}`];
  });

function problemWith(path: string): string | null {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (cause) {
    return `cannot read ${path}: ${(cause as Error).message}`;
  }
  const certificates = text.match(PEM_CERTIFICATE) ?? [];
  if (certificates.length === 0) return `there is no certificate in PEM in ${path}`;
  return certificates.every(isCertificate) ? null : `a certificate in ${path} is damaged`;
}

function isCertificate(pem: string): boolean {
  try {
    return new X509Certificate(pem).raw.length > 0;
  } catch {
    return false;
  }
}
