/**
 * Says for which project a piece of work is done, however deep it is called, so that what all projects share can be shared
 * fairly. Work that no request has begun is the server's own.
 */
import { AsyncLocalStorage } from "node:async_hooks";

const project = new AsyncLocalStorage<string | null>();

/** Does something for a request of a project. */
export const workFor = <T>(name: string, work: () => T): T => project.run(name, work);

/** Does something for the server itself, such as what several requests wait for together. */
export const ownWork = <T>(work: () => T): T => project.run(null, work);

/** Returns the project for which this is called; null for the server's own work. */
export const projectOfWork = (): string | null => project.getStore() ?? null;
