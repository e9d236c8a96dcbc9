/** Reads the form of `POST /v1/files`: the file, its purpose, and the time to keep it. */

import type { FileDetails } from "../api/incoming-file.ts";
import { EXPIRES_AFTER_SECONDS } from "../contract/expires-after.ts";
import { type FilePurpose, UPLOAD_PURPOSES } from "../contract/file.ts";
import { integerTooLarge, PublicError, unsupportedValue } from "../errors.ts";
import { truncate } from "../text/truncate.ts";
import { integerTooSmall, missingParameter, wrongType } from "./body.ts";
import type { Form } from "./form.ts";

const ANCHOR_FIELD = "expires_after[anchor]";
const SECONDS_FIELD = "expires_after[seconds]";

export const FILE_FORM: Form<FileDetails> = {
  content: "file",
  fields: ["purpose", ANCHOR_FIELD, SECONDS_FIELD],
  detailsFrom: (fields) => ({
    purpose: purposeFrom(fields.get("purpose")),
    expiresAfterSeconds: expiresAfterSecondsFrom(
      fields.get(ANCHOR_FIELD),
      fields.get(SECONDS_FIELD),
    ),
  }),
};

function purposeFrom(purpose: string | undefined): FilePurpose {
  if (purpose === undefined || purpose === "") {
    throw new PublicError("invalid_request", "'purpose' is a required property");
  }
  if (!UPLOAD_PURPOSES.some((each) => each === purpose)) {
    throw unknownPurpose(purpose, UPLOAD_PURPOSES);
  }
  return purpose as FilePurpose;
}

function expiresAfterSecondsFrom(
  anchor: string | undefined,
  seconds: string | undefined,
): number | null {
  if (anchor === undefined && seconds === undefined) return null;
  if (anchor === undefined) throw missingParameter(ANCHOR_FIELD);
  if (seconds === undefined) throw missingParameter(SECONDS_FIELD);
  if (anchor !== "created_at") throw unsupportedValue(ANCHOR_FIELD, anchor, ["created_at"]);
  if (!/^-?\d{1,300}$/.test(seconds)) throw wrongType(SECONDS_FIELD, "an integer", "a string");
  const value = Number(seconds);
  const { min, max } = EXPIRES_AFTER_SECONDS;
  if (value < min) throw integerTooSmall(SECONDS_FIELD, value, min);
  if (value > max) throw integerTooLarge(SECONDS_FIELD, value, max);
  return value;
}

export const unknownPurpose = (purpose: string, known: readonly FilePurpose[]) =>
  new PublicError(
    "invalid_request",
    `'${truncate(purpose)}' is not one of [${known.map((each) => `'${each}'`).join(", ")}] - 'purpose'`,
    { param: "purpose" },
  );
