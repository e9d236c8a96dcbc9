/**
 * Encrypts the credentials that a client brings for one delivery, with AES-256-GCM. The text is bound to the id of its
 * delivery, so a copy of it in another row opens nothing. Without the key of the configuration or of the key file, a copy of
 * the database is of no use.
 */
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from "node:crypto";
import { link, readFile, rm, writeFile } from "node:fs/promises";
import { dirname } from "node:path";
import type { BucketCredentials, DeliveryId } from "../batch/delivery.ts";
import { randomHexId } from "../batch/random-id.ts";
import { syncFolder } from "../blobs/file-system.ts";

const VERSION = "v1";
const KEY_BYTES = 32;
const IV_BYTES = 12;
const TAG_BYTES = 16;
const INFO = "batchd credentials of deliveries";

/** The error for a text that another key has encrypted, or that is damaged. */
export class CannotUnseal extends Error {
  override readonly name = "CannotUnseal";
}

/** Makes a key of any text with enough random characters. */
export const keyOf = (text: string): Buffer =>
  Buffer.from(hkdfSync("sha256", text, "", INFO, KEY_BYTES));

export function seal(id: DeliveryId, credentials: BucketCredentials, key: Buffer): string {
  const iv = randomBytes(IV_BYTES);
  const cipher = createCipheriv("aes-256-gcm", key, iv).setAAD(Buffer.from(id));
  const sealed = Buffer.concat([
    iv,
    cipher.update(JSON.stringify(credentials), "utf8"),
    cipher.final(),
    cipher.getAuthTag(),
  ]);
  return `${VERSION}.${sealed.toString("base64url")}`;
}

export function unseal(id: DeliveryId, text: string, key: Buffer): BucketCredentials {
  const [version, encoded = ""] = text.split(".");
  const sealed = Buffer.from(encoded, "base64url");
  if (version !== VERSION || sealed.length < IV_BYTES + TAG_BYTES) throw new CannotUnseal();
  const decipher = createDecipheriv("aes-256-gcm", key, sealed.subarray(0, IV_BYTES))
    .setAAD(Buffer.from(id))
    .setAuthTag(sealed.subarray(-TAG_BYTES));
  try {
    const content = sealed.subarray(IV_BYTES, -TAG_BYTES);
    const opened = Buffer.concat([decipher.update(content), decipher.final()]);
    return JSON.parse(opened.toString("utf8")) as BucketCredentials;
  } catch (cause) {
    throw new CannotUnseal("the credentials cannot be decrypted", { cause });
  }
}

/** Reads the key file. Makes it if it is missing, readable for this user alone. */
export async function keyInFile(path: string): Promise<Buffer> {
  const found = await readKey(path);
  if (found !== null) return keyOf(found);
  const temporary = `${path}.${randomHexId()}`;
  try {
    await writeFile(temporary, randomBytes(KEY_BYTES).toString("hex"), {
      mode: 0o600,
      flag: "wx",
      flush: true,
    });
    // A link never replaces a key that another call has made meanwhile.
    await link(temporary, path).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "EEXIST") throw error;
    });
    // Credentials that are stored would outlive a power cut that takes the name of their key.
    await syncFolder(dirname(path));
  } finally {
    await rm(temporary, { force: true });
  }
  const made = await readKey(path);
  if (made === null) throw new Error(`the key file ${path} is empty`);
  return keyOf(made);
}

async function readKey(path: string): Promise<string | null> {
  const text = await readFile(path, "utf8").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return "";
    throw error;
  });
  return text === "" ? null : text;
}
