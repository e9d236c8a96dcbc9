/** The address that a server listens on, and the reason why it cannot, in words for an operator. */
import { createServer, type Server } from "node:net";

export interface Address {
  readonly host: string;
  /** The port; 0 stands for any free one. */
  readonly port: number;
}

/**
 * The connections that may wait for the server; the system has a limit of its own, 4,096 on Linux. With the 511 of Node, a burst
 * of one client had the system drop connections of others, which come back after one second, then three.
 */
const BACKLOG = 4_096;

/** Says why the address cannot be listened on, for a start that must not leave anything behind; null when it can be. */
export async function problemOfAddress(address: Address): Promise<string | null> {
  const server = createServer((socket) => socket.destroy());
  const problem = await bind(server, address);
  if (problem === null) await new Promise((resolve) => server.close(resolve));
  return problem;
}

/** Resolves to the reason why the server cannot listen there, or null. */
export function bind(server: Server, { host, port }: Address): Promise<string | null> {
  return new Promise((resolve) => {
    server.once("error", (error: NodeJS.ErrnoException) => {
      resolve(describeBindFault(error, { host, port }));
    });
    server.listen({ host, port, backlog: BACKLOG }, () => resolve(null));
  });
}

function describeBindFault(error: NodeJS.ErrnoException, { host, port }: Address): string {
  switch (error.code) {
    case "EADDRINUSE":
      return `port ${port} on ${host} is already in use: stop what listens there, or choose another port with --port`;
    case "EACCES":
      return `port ${port} on ${host} needs rights that this process does not have`;
    case "EADDRNOTAVAIL":
      return `${host} is not an address of this machine`;
    case "ENOTFOUND":
    case "EAI_AGAIN":
      return `the host ${host} is not known`;
    default:
      return `cannot listen on ${host}:${port}: ${error.message}`;
  }
}
