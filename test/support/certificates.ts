import { randomUUID } from "node:crypto";
import { generate } from "selfsigned";

/** A certificate and its key, in PEM. */
export interface Certificate {
  readonly cert: string;
  readonly key: string;
}

export interface Authority {
  /** The certificate that clients have to trust. */
  readonly cert: string;
  issue(names: { readonly dns?: string; readonly ip?: string }): Promise<Certificate>;
}

/** Creates a certificate authority that no system trusts. */
export async function privateAuthority(): Promise<Authority> {
  const root = await generate([{ name: "commonName", value: `Test authority ${randomUUID()}` }], {
    keyType: "ec",
    algorithm: "sha256",
    extensions: [
      { name: "basicConstraints", cA: true, critical: true },
      { name: "keyUsage", keyCertSign: true, cRLSign: true, critical: true },
    ],
  });
  return {
    cert: root.cert,
    issue: async ({ dns, ip }) => {
      const { cert, private: key } = await generate(
        [{ name: "commonName", value: "Test server" }],
        {
          keyType: "ec",
          algorithm: "sha256",
          ca: { key: root.private, cert: root.cert },
          extensions: [
            {
              name: "subjectAltName",
              altNames: [
                ...(dns === undefined ? [] : [{ type: 2 as const, value: dns }]),
                ...(ip === undefined ? [] : [{ type: 7 as const, ip }]),
              ],
            },
          ],
        },
      );
      return { cert, key };
    },
  };
}
