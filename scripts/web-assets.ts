/** Copies our own files of the web page beside the built code that serves them. */
import { cpSync } from "node:fs";

const SERVED = /\.(?:js|css|svg)$/;

cpSync(
  new URL("../src/web/assets", import.meta.url),
  new URL("../dist/web/assets", import.meta.url),
  {
    recursive: true,
    filter: (path) => SERVED.test(path) || path.endsWith("assets"),
  },
);
