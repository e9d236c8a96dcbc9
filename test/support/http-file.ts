/** Reads files of HTTP requests for editors: `### name`, a request, `{{variables}}`, and `< ./file` for content. */
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";

export interface HttpRequest {
  readonly method: string;
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/** Returns the requests by name. Variables stay as they are until {@link fill}. */
export function readHttpFile(path: string): {
  readonly requests: ReadonlyMap<string, HttpRequest>;
  readonly variables: Readonly<Record<string, string>>;
} {
  const [head = "", ...sections] = readFileSync(path, "utf8").split(/^### */m);
  const variables = Object.fromEntries(
    [...head.matchAll(/^@(\w+) = (.*)$/gm)].map(([, name = "", value = ""]) => [name, value]),
  );
  const requests = new Map(
    sections.map((section) => {
      const [name = "", ...lines] = section.split("\n");
      return [name.trim(), parseRequest(lines.join("\n"), dirname(path))];
    }),
  );
  return { requests, variables };
}

function parseRequest(text: string, folder: string): HttpRequest {
  const [head = "", ...rest] = text.trim().split("\n\n");
  const [requestLine = "", ...headerLines] = head.split("\n");
  const [method = "", url = ""] = requestLine.split(" ");
  const headers = Object.fromEntries(
    headerLines.map((line) => [
      line.slice(0, line.indexOf(":")).toLowerCase(),
      line.slice(line.indexOf(":") + 1).trim(),
    ]),
  );
  const body = rest
    .join("\n\n")
    .replaceAll(/^< (.+)$/gm, (_line, file: string) =>
      readFileSync(join(folder, file), "utf8").trimEnd(),
    );
  return { method, url, headers, body };
}

/** Replaces the variables in a request. A variable without a value is an error. */
export function fill(
  request: HttpRequest,
  variables: Readonly<Record<string, string>>,
): HttpRequest {
  const filled = (text: string) =>
    text.replaceAll(/\{\{(\w+)\}\}/g, (_whole, name: string) => {
      const value = variables[name];
      if (value === undefined) throw new Error(`{{${name}}} has no value`);
      return value;
    });
  return {
    method: request.method,
    url: filled(request.url),
    headers: Object.fromEntries(
      Object.entries(request.headers).map(([name, value]) => [name, filled(value)]),
    ),
    body: filled(request.body),
  };
}
