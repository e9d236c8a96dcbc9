/** The schemas of keys that are made at run time. */
import { z } from "zod";
import { pageOf } from "./page.ts";
import { DEFAULT_SCOPES, Scope } from "./scope.ts";
import { boundedText } from "./text.ts";
import { LAST_SECOND, UnixSeconds } from "./unix-seconds.ts";

/** The longest name of a key or a project that is made at run time, in characters. */
export const NAME_MAX_LENGTH = 64;

/** A name that is safe in logs, headers and terminals. */
export const Name = boundedText(NAME_MAX_LENGTH).regex(
  /^[A-Za-z0-9][A-Za-z0-9._-]*$/,
  "use letters, digits, '.', '_' and '-'",
);

/** The project of a key that names none. */
export const DEFAULT_PROJECT = "default";

const Scopes = z
  .array(Scope)
  .refine(
    (scopes) => scopes.length > 0 && new Set(scopes).size === scopes.length,
    "name at least one scope, and each once.",
  )
  .meta({ minItems: 1, uniqueItems: true });

export const CreateKey = z
  .strictObject({
    name: Name.describe("Says in logs and lists what the key is for."),
    project: Name.default(DEFAULT_PROJECT).describe(
      "The project whose files and batches the key sees.",
    ),
    scopes: Scopes.default([...DEFAULT_SCOPES]).describe("What the key may do."),
    expires_at: UnixSeconds.min(1)
      .max(LAST_SECOND)
      .nullish()
      .describe("The end of the key in Unix seconds; a key without it has none."),
  })
  .meta({ id: "CreateKey" });

export const KeyObject = z
  .object({
    id: z.string().describe("`key_` and 32 hexadecimal digits."),
    object: z.literal("key"),
    name: z.string(),
    project: z.string(),
    scopes: z.array(Scope),
    created_at: UnixSeconds,
    expires_at: UnixSeconds.nullable(),
    last_used_at: UnixSeconds.nullable().describe("Unix seconds, up to a minute late."),
  })
  .meta({ id: "Key" });
export type KeyObject = z.infer<typeof KeyObject>;

export const CreatedKey = KeyObject.extend({
  key: z.string().describe("The key itself. No other answer ever has it."),
}).meta({ id: "CreatedKey" });
export type CreatedKey = z.infer<typeof CreatedKey>;

export const KeyPage = pageOf(KeyObject).meta({ id: "KeyPage" });

export const DeletedKey = z
  .object({ id: z.string(), object: z.literal("key"), deleted: z.literal(true) })
  .meta({ id: "DeletedKey" });

/** The page sizes of the lists under `/v1/admin`. */
export const ADMIN_PAGE = { min: 1, max: 100, default: 20 } as const;
