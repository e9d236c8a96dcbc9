/**
 * Keeps open pages up to date with server-sent events.
 *
 * The pages of people who see the same thing share one poll of the API, so many tabs cost as much as one. The poll ends with
 * the last of them. All polls together read at most fifty pages a second, and a project a quarter of them: with more
 * different pages open, each is read less often. A project also has at most a quarter of the streams, so that one key cannot
 * take those of all others. Only elements that have changed are sent. A session that ends also ends its events.
 *
 * A browser that never reads must not keep its place. The kernel takes so much for it that no write may ever wait, so every stream
 * ends after a while, and a page that is still open connects again. A stream whose writes do wait is cut by the limit on silence of
 * the server.
 */
import type { ServerResponse } from "node:http";
import { RESPONSE_ALREADY_SENT } from "@hono/node-server/utils/response";
import { type Clock, sleep } from "../clock.ts";
import { whenClosed } from "../http/connection.ts";
import type { AppContext } from "../http/context.ts";
import type { Log } from "../telemetry/log.ts";
import type { Answer } from "./api.ts";
import { assetsVersion } from "./assets.ts";
import { changesSince, type Snapshot, snapshotOf, type View } from "./page.ts";

const MAX_LISTENERS = 300;
/** The part of the streams and of the polls that one project may have. */
const PROJECTS_AT_LEAST = 4;
const MAX_LISTENERS_OF_PROJECT = MAX_LISTENERS / PROJECTS_AT_LEAST;
const POLLS_PER_SECOND = 50;
/** A page takes a longer silence for a lost connection. It never hears of a comment, so this is an event. */
const HEARTBEAT_MS = 20_000;
/** What a slow reader may leave unread. Its page connects again and gets the present state. */
const MAX_UNREAD_BYTES = 1024 * 1024;
const RECONNECT_MS = 2_000;
const MAX_AGE_MS = 15 * 60_000;

const NOTHING: Snapshot = new Map();

const HEADERS = {
  "content-type": "text/event-stream",
  "cache-control": "no-store",
  "x-content-type-options": "nosniff",
  // nginx would hold the events back.
  "x-accel-buffering": "no",
};

export interface Topic {
  readonly project: string;
  /** The same for everyone who sees the same. It has the query of the page, which may hold a secret, so no log may have it. */
  readonly key: string;
  readonly path: string;
  /** What the reader may see. A page of another session, which was opened before, must not take what comes. */
  readonly rights: string;
  readonly pollMs: number;
  readonly view: () => Promise<Answer<View>>;
  /** Whether the reader may still see it. */
  readonly isAllowed: () => Promise<boolean>;
}

interface Listener extends Pick<Topic, "view" | "isAllowed"> {
  readonly outgoing: ServerResponse;
  readonly openedAtMs: number;
  sentAtMs: number;
}

interface Poll {
  readonly key: string;
  readonly project: string;
  readonly listeners: Set<Listener>;
  readonly end: AbortController;
  latest: Snapshot | null;
}

export interface LiveDeps {
  readonly clock: Clock;
  readonly log: Log;
}

/**
 * Answers a page whose session has ended while it was hidden or its server was away. A browser hides the status of a stream from
 * its page, so only an event can say that the page is to be loaded again, which asks to sign in.
 */
export const answerReload = (c: AppContext): Response =>
  c.body("event: reload\ndata: {}\n\n", 200, HEADERS);

export class Live {
  readonly #deps: LiveDeps;
  readonly #polls = new Map<string, Poll>();
  #isClosed = false;

  constructor(deps: LiveDeps) {
    this.#deps = deps;
  }

  /** Answers with events until the page is closed, or has nothing left to change. */
  answer(c: AppContext, topic: Topic): Response {
    if (c.req.method === "HEAD") return c.body(null, 200, HEADERS);
    if (this.#isClosed || !this.#hasRoomFor(topic.project)) {
      return c.text("Too many pages are open. This one stays as it is.", 503);
    }
    const { outgoing } = c.env;
    outgoing.writeHead(200, HEADERS);
    outgoing.write(`retry: ${RECONNECT_MS}\nevent: rights\ndata: ${topic.rights}\n\n`);
    outgoing.write(`event: version\ndata: ${assetsVersion()}\n\n`);
    this.#listen(topic, outgoing);
    return RESPONSE_ALREADY_SENT;
  }

  #hasRoomFor(project: string): boolean {
    const counts = [...this.#polls.values()].map((poll) => ({
      count: poll.listeners.size,
      isOwn: poll.project === project,
    }));
    const sum = (of: typeof counts) => of.reduce((all, { count }) => all + count, 0);
    const own = sum(counts.filter(({ isOwn }) => isOwn));
    return sum(counts) < MAX_LISTENERS && own < MAX_LISTENERS_OF_PROJECT;
  }

  /** The pause that leaves every project its part of all polls. */
  #leastMs(project: string): number {
    const projects = [...this.#polls.values()].map((poll) => poll.project);
    const own = projects.filter((each) => each === project).length;
    const parts = Math.max(PROJECTS_AT_LEAST, new Set(projects).size);
    return (own * parts * 1000) / POLLS_PER_SECOND;
  }

  close(): void {
    this.#isClosed = true;
    for (const poll of this.#polls.values()) {
      for (const { outgoing } of poll.listeners) outgoing.end();
    }
  }

  #listen(topic: Topic, outgoing: ServerResponse): void {
    const nowMs = this.#deps.clock.elapsedMs();
    const { view, isAllowed } = topic;
    const listener = { outgoing, view, isAllowed, openedAtMs: nowMs, sentAtMs: nowMs };
    const poll = this.#polls.get(topic.key) ?? this.#begin(topic);
    poll.listeners.add(listener);
    // The page may be older than the latest poll.
    if (poll.latest !== null) this.#send(listener, "parts", changesSince(NOTHING, poll.latest));
    whenClosed(outgoing, () => this.#remove(poll, listener));
  }

  #remove(poll: Poll, listener: Listener): void {
    poll.listeners.delete(listener);
    if (poll.listeners.size > 0) return;
    poll.end.abort();
    if (this.#polls.get(poll.key) === poll) this.#polls.delete(poll.key);
  }

  #begin(topic: Topic): Poll {
    const { key, project } = topic;
    const end = new AbortController();
    const poll: Poll = { key, project, listeners: new Set(), end, latest: null };
    this.#polls.set(key, poll);
    void this.#run(topic, poll);
    return poll;
  }

  async #run(topic: Topic, poll: Poll): Promise<void> {
    const { clock, log } = this.#deps;
    const { signal } = poll.end;
    while (!signal.aborted) {
      const isOver = await this.#pollOnce(poll).catch((err: unknown) => {
        log.warn({ err, project: topic.project, path: topic.path }, "page.poll_failed");
        return false;
      });
      if (isOver) break;
      await sleep(clock, Math.max(topic.pollMs, this.#leastMs(topic.project)), signal);
    }
    if (this.#polls.get(topic.key) === poll) this.#polls.delete(topic.key);
  }

  /** Returns whether the page has nothing left to change. */
  async #pollOnce(poll: Poll): Promise<boolean> {
    await this.#endStale(poll);
    // The audit log names who asks, so it is one of those who still read.
    const [reader] = poll.listeners;
    if (reader === undefined) return true;
    const answer = await reader.view();
    await this.#endStale(poll);
    if (!answer.ok) {
      // An overload passes; anything else is for the page itself to show.
      if (answer.status === 429 || answer.status >= 500) return false;
      this.#endAll(poll, "reload");
      return true;
    }
    const snapshot = await snapshotOf(answer.value);
    const changes = changesSince(poll.latest ?? NOTHING, snapshot);
    poll.latest = snapshot;
    const nowMs = this.#deps.clock.elapsedMs();
    for (const listener of poll.listeners) {
      if (Object.keys(changes).length > 0) this.#send(listener, "parts", changes);
      else if (nowMs - listener.sentAtMs >= HEARTBEAT_MS) this.#send(listener, "beat", {});
    }
    if (answer.value.isOver) this.#endAll(poll, "over");
    return answer.value.isOver;
  }

  /** Ends the streams of those who were signed out, and those that are old. */
  async #endStale(poll: Poll): Promise<void> {
    const openedBeforeMs = this.#deps.clock.elapsedMs() - MAX_AGE_MS;
    for (const listener of poll.listeners) {
      const { outgoing, openedAtMs } = listener;
      if (!(await listener.isAllowed())) this.#end(poll, listener, "reload");
      else if (openedAtMs > openedBeforeMs) continue;
      else if (outgoing.writableNeedDrain) outgoing.destroy();
      else this.#close(poll, listener);
    }
  }

  #endAll(poll: Poll, event: string): void {
    for (const listener of poll.listeners) this.#end(poll, listener, event);
  }

  #end(poll: Poll, listener: Listener, event: string): void {
    this.#send(listener, event, {});
    this.#close(poll, listener);
  }

  /**
   * Gives the place back at once, even if the browser never reads the end. What is written is still sent: the last elements may
   * be more than a connection takes at a time.
   */
  #close(poll: Poll, listener: Listener): void {
    listener.outgoing.end();
    this.#remove(poll, listener);
  }

  #send(listener: Listener, event: string, content: Readonly<Record<string, string>>): void {
    this.#write(listener, `event: ${event}\ndata: ${JSON.stringify(content)}\n\n`);
  }

  #write(listener: Listener, text: string): void {
    const { outgoing } = listener;
    if (outgoing.writableLength > MAX_UNREAD_BYTES) outgoing.destroy();
    if (outgoing.writableEnded || outgoing.destroyed) return;
    listener.sentAtMs = this.#deps.clock.elapsedMs();
    outgoing.write(text);
  }
}
