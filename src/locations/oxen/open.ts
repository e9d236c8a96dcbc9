/** Opens an Oxen location from its configuration. */
import type { LocationConfig } from "../../config/locations.ts";
import type { Location } from "../location.ts";
import { OxenLocation } from "./oxen.ts";

type OxenConfig = Extract<LocationConfig, { kind: "oxen" }>;

export const openOxenLocation = ({
  name,
  url,
  repository,
  base,
  ...config
}: OxenConfig): Location =>
  new OxenLocation({
    name,
    url,
    repository,
    base,
    token: config.token ?? null,
    author: { name: config.author_name, email: config.author_email },
    timeoutMs: config.timeout_seconds * 1_000,
  });
