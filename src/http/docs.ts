/**
 * Serves the OpenAPI document, and Swagger UI to read it. Swagger UI loads everything from this server, so it works
 * without the internet, and its security policy allows nothing else. All addresses in the page are relative, so it also
 * works behind a proxy that adds a path prefix.
 */
import { existsSync, readFileSync } from "node:fs";
import type { Hono } from "hono";
import { PublicError } from "../errors.ts";
import { lazy } from "../lazy.ts";
import type { AppEnv } from "./context.ts";
import { pathOf } from "./path.ts";

const STYLES = "swagger-ui.css";
const CODE = "swagger-ui-bundle.js";
/**
 * The files of Swagger UI. A checkout reads them from the package; a build has its own copies, because it has no
 * development packages.
 */
export const SWAGGER_FILES = [STYLES, CODE] as const;
const BUILT_FOLDER = "./swagger-ui/";

const PAGE = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>batchd API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/${STYLES}">
<link rel="stylesheet" href="docs/page.css">
</head>
<body>
<div id="document"><p class="hint">The page needs JavaScript. The document itself: <a href="openapi.yaml">openapi.yaml</a></p></div>
<script src="docs/${CODE}"></script>
<script src="docs/page.js"></script>
</body>
</html>
`;

/**
 * What screen readers need and Swagger UI lacks: a path is not a link within the button that folds its operation, everything
 * is in a landmark, no heading skips a level, and each list of choices and each table of answers has a name.
 */
const PAGE_CODE = `function readable({ React: { createElement: make, Fragment } }) {
  const below = (level, title) => (Original) => (props) =>
    make(Fragment, null, make(level, { className: "unseen" }, title), make(Original, props));
  const region = (label) => (Original) => (props) =>
    make("section", { "aria-label": label }, make(Original, props));
  return {
    wrapComponents: {
      DeepLink: () => ({ text }) => make("span", null, text),
      InfoContainer: region("About"),
      ServersContainer: region("Server"),
      AuthorizeBtnContainer: region("Key"),
      operations: below("h2", "Operations"),
      Models: below("h3", "Shapes of requests and answers"),
    },
  };
}

const page = document.getElementById("document");
new MutationObserver(() => {
  for (const list of page.querySelectorAll("select:not([aria-label])")) {
    list.ariaLabel = list.closest("[data-param-name]")?.dataset.paramName ?? "Choice";
  }
  for (const table of page.querySelectorAll("table[role=region]:not([aria-label])")) {
    const operation = table.closest(".opblock");
    const textOf = (part) => operation?.querySelector(".opblock-summary-" + part)?.textContent ?? "";
    table.ariaLabel = "Answers of " + textOf("method") + " " + textOf("path");
  }
}).observe(page, { childList: true, subtree: true });

SwaggerUIBundle({
  url: "openapi.yaml",
  dom_id: "#document",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  defaultModelRendering: "example",
  displayRequestDuration: true,
  syntaxHighlight: { theme: "obsidian" },
  plugins: [readable],
});
`;

/** The colours are those of Swagger UI, so dark that text of them, or on them, can be read. */
const PAGE_STYLES = `body { margin: 0; }
.hint { font-family: sans-serif; margin: 3rem; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.swagger-ui .info { margin: 2rem 0 1rem; }
.swagger-ui .scheme-container { box-shadow: none; padding: 0 0 1rem; }
.swagger-ui .info .title small { background: #565c66; }
.swagger-ui .info .title small.version-stamp { background: #4a6a00; }
.swagger-ui .info a, .swagger-ui .info .base-url, .swagger-ui .url { color: #1f66b5; }
.swagger-ui .btn.authorize { border-color: #1d7a4f; color: #1d7a4f; }
.swagger-ui .btn.authorize svg { fill: #1d7a4f; }
.swagger-ui .opblock.opblock-post .opblock-summary-method { background: #1d7a4f; }
.swagger-ui .opblock.opblock-get .opblock-summary-method { background: #1c69b8; }
.swagger-ui .markdown code, .swagger-ui .renderedMarkdown code { color: #6b0fc0; }
.swagger-ui .parameter__in { color: #595959; }
.swagger-ui .opblock.opblock-delete .opblock-summary-method { background: #c81e1e; }
`;

const SECURITY_POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self' 'unsafe-inline'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join("; ");

const TYPES = {
  html: "text/html; charset=utf-8",
  css: "text/css; charset=utf-8",
  js: "text/javascript; charset=utf-8",
} as const;

/**
 * The files by name. Each is read at its first request. They are bytes, because a connection whose client reads nothing keeps a
 * copy of a text, and there may be thousands: the code has 1.7 MB.
 */
const ASSETS: Readonly<Record<string, () => Promise<Bytes | null>>> = {
  [STYLES]: lazy(async () => swaggerFile(STYLES)),
  [CODE]: lazy(async () => swaggerFile(CODE)),
  "page.css": lazy(async () => Buffer.from(PAGE_STYLES)),
  "page.js": lazy(async () => Buffer.from(PAGE_CODE)),
};
type Bytes = Buffer<ArrayBuffer>;

export function mountDocs(app: Hono<AppEnv>): void {
  const document = lazy(makeDocument);
  app.get("/openapi.yaml", async (c) =>
    c.body(await document(), 200, { "content-type": "application/yaml; charset=utf-8" }),
  );

  app.get("/docs", (c) => {
    // The relative addresses of the page only work under the path without the slash.
    if (pathOf(c.req.url).endsWith("/")) return c.redirect("../docs", 308);
    const headers = { "content-type": TYPES.html, "content-security-policy": SECURITY_POLICY };
    return c.body(PAGE, 200, headers);
  });

  app.get("/docs/:asset", async (c) => {
    const name = c.req.param("asset");
    const bytes = Object.hasOwn(ASSETS, name) ? ((await ASSETS[name]?.()) ?? null) : null;
    if (bytes === null) throw new PublicError("not_found", `Invalid URL (GET /docs/${name})`);
    const type = name.endsWith(".css") ? TYPES.css : TYPES.js;
    return c.body(bytes, 200, { "content-type": type, "x-content-type-options": "nosniff" });
  });
}

/** Makes the document. The import waits for the first request, because it would slow every start. */
async function makeDocument(): Promise<Bytes> {
  const { openApiYaml } = await import("../contract/openapi.ts");
  return Buffer.from(openApiYaml());
}

/**
 * Returns null when neither the build nor the package has the file. The page then gives the address of the document.
 */
function swaggerFile(name: (typeof SWAGGER_FILES)[number]): Bytes | null {
  const built = new URL(`${BUILT_FOLDER}${name}`, import.meta.url);
  if (existsSync(built)) return readFileSync(built);
  try {
    return readFileSync(new URL(name, swaggerFolder()));
  } catch {
    return null;
  }
}

/** The folder of the package. */
export const swaggerFolder = (): string => import.meta.resolve("swagger-ui-dist/package.json");
