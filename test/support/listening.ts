/** Starts servers for a test on free ports, and closes them when the test ends. */
import type { AddressInfo, Server, Socket } from "node:net";
import { onTestFinished } from "vitest";

/** Resolves to the port. */
export async function listening(server: Server): Promise<number> {
  const sockets = new Set<Socket>();
  const remember = (socket: Socket) => {
    sockets.add(socket);
    socket.once("close", () => sockets.delete(socket)).on("error", () => {});
  };
  server.on("connection", remember);
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  server.once("error", reject).listen(0, "127.0.0.1", resolve);
  await promise;
  onTestFinished(async () => {
    const closed = new Promise<void>((done) => server.close(() => done()));
    for (const socket of sockets) socket.destroy();
    await closed;
  });
  return (server.address() as AddressInfo).port;
}
