/** The last step of the build: copies the files of the page at `/docs` beside the code that serves it. */
import { copyFileSync, mkdirSync } from "node:fs";
import { SWAGGER_FILES, swaggerFolder } from "../src/http/docs.ts";

const folder = new URL("../dist/http/swagger-ui/", import.meta.url);

mkdirSync(folder, { recursive: true });
for (const name of [...SWAGGER_FILES, "LICENSE", "NOTICE"]) {
  copyFileSync(new URL(name, swaggerFolder()), new URL(name, folder));
}
