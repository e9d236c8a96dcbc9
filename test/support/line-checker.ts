/** Checks lines of an input, as a batch does: the helpers of the tests of lines. */
import type { ModelRules } from "../../src/batch/file-models.ts";
import { LineChecker } from "../../src/batch/line-check.ts";

export const CHAT = "/v1/chat/completions";

export const good = {
  custom_id: "a",
  method: "POST",
  url: CHAT,
  body: { model: "m", messages: [] },
};

export const bytesOf = (line: unknown) =>
  Buffer.from(typeof line === "string" ? line : JSON.stringify(line));

/** Every model has a route but one; two go by other names of the same. */
export const RULES: ModelRules = {
  routeKeyOf: (model) => (model === "unknown" ? null : model.replace(/^alias of /, "")),
  defaultModel: null,
  allowsMixedModels: false,
};

export const chatChecker = (rules: Partial<ModelRules> = {}) =>
  new LineChecker(CHAT, { ...RULES, ...rules });

/** What a fresh checker says about one line of a chat batch. */
export const faultOf = (line: unknown) => chatChecker().findFault(bytesOf(line));

export const withBody = (body: unknown) => ({ ...good, body });
