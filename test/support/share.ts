/** A server that delivers to a folder, its location `share`. */
import { join } from "node:path";
import { type ServiceOptions, startTestService } from "./service.ts";
import { temporaryFolder } from "./store-builders.ts";
import { startUpstream } from "./upstream.ts";

export const folderAt = (path: string, name = "share") => ({
  name,
  kind: "folder",
  path,
  access: "write",
});

/** `below` names a folder that is not there yet. */
export async function startShare({ below = "", config, ...options }: ServiceOptions & Below = {}) {
  const folder = temporaryFolder("batchd-share-");
  const path = join(folder.path, below);
  const upstream = await startUpstream();
  const service = await startTestService({
    upstreamUrl: upstream.url,
    ...options,
    config: { ...config, locations: [folderAt(path)] },
  });
  const close = async () => {
    await service[Symbol.asyncDispose]();
    await upstream[Symbol.asyncDispose]();
    folder[Symbol.dispose]();
  };
  return { path, service, [Symbol.asyncDispose]: close };
}

interface Below {
  readonly below?: string;
}
