/**
 * Replays the HTTP interface of an Oxen server, read in the source of crate oxen-server 0.53.0. It keeps its data in memory,
 * and refuses every request that the real one would not take. It is no proof that a real server works the same:
 * `BATCHD_TEST_OXEN_URL` names one for that.
 */
import { createHash, randomUUID } from "node:crypto";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { buffer } from "node:stream/consumers";
import { xxhash128 } from "hash-wasm";

type Files = ReadonlyMap<string, Buffer>;

interface Commit {
  readonly id: string;
  readonly parent_ids: readonly string[];
  readonly message: string;
  readonly author: string;
  readonly email: string;
  readonly files: Files;
}

interface Reply {
  readonly status: number;
  readonly body: object | Buffer;
}

interface Asked {
  readonly method: string;
  readonly path: string;
  readonly query: URLSearchParams;
  readonly type: string;
  readonly body: Buffer;
}

const reply = (status: number, body: object | Buffer): Reply => ({ status, body });
const refuse = (status: number, text: string) =>
  reply(status, { status: "error", status_message: text });
const FOUND = { status: "success", status_message: "resource_found" };

/** What a server does in the place of an answer. */
export type OxenTrouble = (method: string, path: string) => Reply | "break" | null;

export class OxenServer {
  readonly requests: string[] = [];
  readonly authorizations = new Set<string | undefined>();
  readonly branches = new Map<string, string>();
  readonly workspaces = new Map<
    string,
    { branch: string; base: string; staged: Map<string, Buffer> }
  >();
  readonly commits = new Map<string, Commit>();
  readonly #versions = new Map<string, Map<number, Buffer>>();
  trouble: OxenTrouble | null = null;
  /** Old servers know only this word. */
  mergeVerb: "merge" | "commit" = "merge";

  readonly http = createServer((asked, answer) => void this.#serve(asked, answer));

  constructor() {
    this.commit("main", new Map());
  }

  /** Commits files to a branch, as a person does. */
  commit(
    branch: string,
    added: Files,
    message = "by a person",
    author = { author: "", email: "" },
  ) {
    const parent = this.branches.get(branch);
    const before = parent === undefined ? new Map() : this.commits.get(parent)?.files;
    const id = createHash("md5").update(randomUUID()).digest("hex");
    const files = new Map([...(before ?? []), ...added]);
    const parent_ids = parent === undefined ? [] : [parent];
    const commit = { id, parent_ids, message, ...author, files };
    this.commits.set(id, commit);
    this.branches.set(branch, id);
    return commit;
  }

  filesIn(branch: string, folder: string): Map<string, Buffer> {
    const files = this.commits.get(this.branches.get(branch) ?? "")?.files ?? new Map();
    const inside = [...files].filter(([path]) => path.startsWith(`${folder}/`));
    return new Map(inside.map(([path, bytes]) => [path.slice(folder.length + 1), bytes]));
  }

  async #serve(incoming: IncomingMessage, answer: ServerResponse): Promise<void> {
    const { method = "", url = "", headers } = incoming;
    const { pathname, searchParams: query } = new URL(url, "http://oxen");
    const prefix = "/api/repos/ns/data/";
    const parts = pathname.slice(prefix.length).split("/");
    const isUpload = parts[0] === "workspaces" && parts[2] === "files";
    const path = parts.map(isUpload ? decodedAsUpload : decodeURIComponent).join("/");
    this.requests.push(`${method} ${path}`);
    this.authorizations.add(headers.authorization);
    const body = await buffer(incoming);
    const type = headers["content-type"] ?? "";
    const trouble = this.trouble?.(method, path) ?? null;
    if (trouble === "break") return void answer.destroy();
    const isHere = pathname.startsWith(prefix);
    const given = isHere
      ? (trouble ?? (await this.#answer({ method, path, query, type, body })))
      : refuse(404, "repository not found");
    const bytes = Buffer.isBuffer(given.body)
      ? given.body
      : Buffer.from(JSON.stringify(given.body));
    answer.writeHead(given.status, { "content-length": bytes.length }).end(bytes);
  }

  async #answer(asked: Asked): Promise<Reply> {
    const { method, path } = asked;
    const matched = (pattern: RegExp) => pattern.exec(path)?.slice(1) ?? null;
    const route = `${method} ${path}`;
    if (route === "POST branches") return this.#newBranch(asked);
    if (route === "PUT workspaces") return this.#newWorkspace(asked);
    const branch = matched(/^branches\/(.+)$/)?.[0];
    if (branch !== undefined) return this.#branch(method, branch);
    const commit = this.commits.get(matched(/^commits\/([^/]+)$/)?.[0] ?? "");
    if (method === "GET" && commit !== undefined) {
      const { files: _, ...shown } = commit;
      return reply(200, { ...FOUND, commit: shown });
    }
    const file = matched(/^file\/([^/]+)\/(.+)$/);
    if (method === "GET" && file !== null) {
      const bytes = this.commits.get(file[0] ?? "")?.files.get(file[1] ?? "");
      return bytes === undefined ? refuse(404, "resource_not_found") : reply(200, bytes);
    }
    const upload = matched(/^workspaces\/([^/]+)\/files\/(.+)$/);
    if (method === "POST" && upload !== null) return this.#stage(asked, upload);
    const merge = matched(/^workspaces\/([^/]+)\/(merge|commit)\/(.+)$/);
    if (method === "POST" && merge !== null) return this.#merge(asked, merge);
    const workspace = matched(/^workspaces\/([^/]+)$/)?.[0];
    if (method === "DELETE" && workspace !== undefined) {
      return this.workspaces.delete(workspace) ? reply(200, FOUND) : refuse(404, "not found");
    }
    const chunk = matched(/^versions\/([0-9a-f]{32})\/chunks$/)?.[0];
    if (method === "PUT" && chunk !== undefined) {
      const chunks = this.#versions.get(chunk) ?? new Map<number, Buffer>();
      this.#versions.set(chunk, chunks.set(Number(asked.query.get("offset")), asked.body));
      return reply(200, FOUND);
    }
    const complete = matched(/^versions\/([0-9a-f]{32})\/complete$/)?.[0];
    if (method === "POST" && complete !== undefined) return this.#complete(asked, complete);
    return refuse(404, `no route ${route}`);
  }

  #branch(method: string, name: string): Reply {
    const commit_id = this.branches.get(name);
    if (commit_id === undefined) return refuse(404, "Branch not found");
    if (method === "DELETE") this.branches.delete(name);
    return reply(200, { ...FOUND, branch: { name, commit_id } });
  }

  #newBranch({ body }: Asked): Reply {
    const given = JSON.parse(body.toString()) as Record<string, string>;
    if (Object.keys(given).sort().join() !== "commit_id,new_name")
      return refuse(400, "Invalid request body");
    const { new_name: name = "", commit_id = "" } = given;
    if (!this.commits.has(commit_id)) return refuse(404, "revision not found");
    if (this.branches.has(name)) return refuse(500, "branch exists");
    this.branches.set(name, commit_id);
    return reply(200, { ...FOUND, branch: { name, commit_id } });
  }

  #newWorkspace({ body }: Asked): Reply {
    const { workspace_id: id, branch_name: branch } = JSON.parse(body.toString()) as Record<
      string,
      string
    >;
    const base = this.branches.get(branch ?? "");
    if (id === undefined || branch === undefined || base === undefined)
      return refuse(400, "Branch not found");
    const had = this.workspaces.get(id);
    if (had === undefined) this.workspaces.set(id, { branch, base, staged: new Map() });
    return reply(200, { ...FOUND, workspace: { id } });
  }

  async #stage({ type, body }: Asked, [id = "", folder = ""]: string[]): Promise<Reply> {
    const workspace = this.workspaces.get(id);
    if (workspace === undefined) return refuse(404, "workspace not found");
    if (!type.startsWith("multipart/form-data; boundary=")) return refuse(400, "no multipart");
    const form = await new Response(new Uint8Array(body), {
      headers: { "content-type": type },
    }).formData();
    for (const [name, file] of form) {
      if ((name !== "file" && name !== "file[]") || typeof file === "string")
        return refuse(400, name);
      workspace.staged.set(`${folder}/${file.name}`, Buffer.from(await file.arrayBuffer()));
    }
    return reply(200, { ...FOUND, paths: [] });
  }

  async #complete({ body }: Asked, hash: string): Promise<Reply> {
    const { files, workspace_id } = JSON.parse(body.toString()) as {
      files: { hash: string; file_name: string; dst_dir: string; num_chunks: number }[];
      workspace_id: string;
    };
    const [file] = files;
    const chunks = [...(this.#versions.get(hash) ?? [])].sort(([a], [b]) => a - b);
    if (file === undefined || chunks.length !== file.num_chunks)
      return refuse(400, "Number of chunks");
    const bytes = Buffer.concat(chunks.map(([, chunk]) => chunk));
    if ((await xxhash128(bytes)) !== hash || file.hash !== hash) return refuse(400, "hash");
    const workspace = this.workspaces.get(workspace_id);
    if (workspace === undefined) return refuse(404, "Workspace not found");
    workspace.staged.set(`${file.dst_dir}/${file.file_name}`, bytes);
    return reply(200, FOUND);
  }

  #merge({ body }: Asked, [id = "", verb = "", branch = ""]: string[]): Reply {
    if (verb !== this.mergeVerb) return refuse(404, "no such route");
    const workspace = this.workspaces.get(id);
    const head = this.branches.get(branch);
    if (workspace === undefined || head === undefined) return refuse(404, "not found");
    const given = JSON.parse(body.toString()) as {
      message?: string;
      author?: string;
      email?: string;
    };
    const { message, author, email } = given;
    if (message === undefined || author === undefined || email === undefined)
      return refuse(400, "body");
    if (head !== workspace.base) return refuse(409, "workspace is behind");
    const { files: _, ...commit } = this.commit(branch, workspace.staged, message, {
      author,
      email,
    });
    return reply(200, { ...FOUND, commit });
  }
}

/** The real server leaves these signs of an upload's address as they are spelled. */
const decodedAsUpload = (part: string) =>
  decodeURIComponent(part.replaceAll(/%(?=25|2B|2F)/gi, "%25"));
