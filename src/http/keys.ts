/** The routes of keys, for operators. */
import type { KeyRequest, Keys } from "../api/keys.ts";
import type { UntrustedId } from "../batch/batch.ts";
import { CreateKey } from "../contract/key.ts";
import { parseBody, withoutNulls } from "./body.ts";
import { answerJson, readJson } from "./json.ts";
import { answerPage } from "./list.ts";
import { presentCreatedKey, presentKey } from "./present.ts";
import { adminPage, assertKnownParams } from "./query.ts";
import type { Routes } from "./routes.ts";

/** An `Idempotency-Key` has no effect here, because the answer would be stored with the key in it. */
export function mountKeys(app: Routes, keys: Keys): void {
  app.post("/v1/admin/keys", async (c) => {
    assertKnownParams(c, []);
    const created = await keys.create(keyRequest(await readJson(c)));
    c.set("objectId", created.key.id);
    return answerJson(c, presentCreatedKey(created));
  });

  app.get("/v1/admin/keys", async (c) =>
    answerPage(c, adminPage<UntrustedId<"key">>(c), {
      read: (query) => keys.list(query),
      present: presentKey,
    }),
  );

  app.get("/v1/admin/keys/:id", async (c) => {
    assertKnownParams(c, []);
    return answerJson(c, presentKey(await keys.find(c.req.param("id") as UntrustedId<"key">)));
  });

  app.delete("/v1/admin/keys/:id", async (c) => {
    assertKnownParams(c, []);
    const id = await keys.revoke(c.req.param("id") as UntrustedId<"key">);
    return answerJson(c, { id, object: "key", deleted: true });
  });
}

function keyRequest(json: unknown): KeyRequest {
  const { name, project, scopes, expires_at: expiresAt } = parseBody(CreateKey, withoutNulls(json));
  return { name, project, scopes, expiresAtMs: expiresAt == null ? null : expiresAt * 1000 };
}
