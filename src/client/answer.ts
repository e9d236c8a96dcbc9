/**
 * Checks what a server answers before a command reads it. An answer without an id or a list is none of the API. A member
 * of another type than the API gives it is taken out: a command shows the rest, as from a server that leaves the member
 * out. Members that no command reads stay as they are.
 */
import { ReadMembers } from "../contract/read-members.ts";
import { NotTheApi } from "./bounded-fetch.ts";

type Members = Record<string, unknown>;

const isObject = (value: unknown): value is Members =>
  typeof value === "object" && value !== null && !Array.isArray(value);

interface Asked {
  readonly method: string;
  readonly path: string;
}

/** Every answer is an object with an id, or a list of such; a server may answer a deletion with nothing. */
export function assertOfApi(answer: unknown, { method, path }: Asked, headers: Headers): void {
  if (answer === null && method === "delete") return;
  if (isContent(answer)) {
    assertContent(headers);
    return;
  }
  if (typeof answer === "string") {
    throw new NotTheApi(`${headers.get("content-type") ?? "a text"} and not with JSON`);
  }
  const { id, data } = isObject(answer) ? answer : {};
  const isList = typeof id !== "string" && Array.isArray(data);
  for (const each of isList ? data : [answer]) {
    if (!isObject(each) || typeof each["id"] !== "string") {
      throw new NotTheApi("JSON that has neither an id nor a list");
    }
    if (path.startsWith("/batches") && !isDeleted(each) && typeof each["status"] !== "string") {
      throw new NotTheApi("a batch without a status");
    }
    removeMisshapen(each);
  }
}

/** A proxy answers with its page to sign in, with 200, and that would be written as the answers of a batch. */
export function assertContent(headers: Headers): void {
  const type = headers.get("content-type") ?? "";
  if (/^text\/html\b/i.test(type))
    throw new NotTheApi(`${type} and not with the content of a file`);
}

/** Whether an answer is the content of a file. A web server in this process may have replaced the global class. */
const isContent = (answer: unknown): boolean =>
  Object.prototype.toString.call(answer) === "[object Response]";

const isDeleted = ({ deleted }: Members): boolean => deleted === true;

function removeMisshapen(members: Members): void {
  for (const { path } of ReadMembers.safeParse(members).error?.issues ?? []) {
    const [name, inner] = path.map(String);
    const extension = members["x_batchd"];
    if (name === "x_batchd" && inner !== undefined && isObject(extension)) delete extension[inner];
    else delete members[name ?? ""];
  }
}
