/**
 * Nothing that comes at full speed keeps the event loop for long, or takes memory beyond its bytes: neither bodies that a
 * client sends byte by byte, nor what a model server or a receiver of webhooks makes of an answer. A real server, watched
 * as in `event-loop.test.ts`.
 */
import { mkdtemp } from "node:fs/promises";
import { createServer, type Socket } from "node:net";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { submitLines } from "./support/batches.ts";
import { forAllTests } from "./support/for-all-tests.ts";
import { listening } from "./support/listening.ts";
import { RawConnection } from "./support/raw-http.ts";
import { chatLines } from "./support/service.ts";
import { temporaryFolder } from "./support/store-builders.ts";
import { AGAIN, MAX_TURN_MS, startWatched } from "./support/watched-server.ts";

const MEBIBYTE = 1024 * 1024;
const CONNECTIONS = 16;
/** What the server takes by itself, and some rubbish. Without joined pieces the floods take 700 MB and more. */
const MAX_MEMORY_BYTES = 350 * MEBIBYTE;

const folder = forAllTests(temporaryFolder("batchd-floods-")).path;

const chunk = (text: string) => `${text.length.toString(16)}\r\n${text}\r\n`;
/** One read of the server: 10,000 chunks of a space each. */
const SPACES = chunk(" ").repeat(10_000);

async function write(socket: Socket, text: string): Promise<void> {
  if (socket.destroyed || socket.write(text, "latin1")) return;
  await new Promise<void>((resolve) => {
    const goOn = () => {
      socket.off("drain", goOn).off("close", goOn);
      resolve();
    };
    socket.on("drain", goOn).on("close", goOn);
  });
}

/** Writes the text again and again; for ever without a count. */
async function flood(socket: Socket, text: string, count = Number.POSITIVE_INFINITY) {
  for (let i = 0; i < count && !socket.destroyed; i++) await write(socket, text);
}

const FIELDS = [
  '--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n',
  '--b\r\nContent-Disposition: form-data; name="file"; filename="i.jsonl"\r\n\r\n{}\n',
].join("");

/** Uploads a file of which each byte is a chunk. */
async function uploadByBytes(url: string): Promise<string> {
  using connection = await RawConnection.open(url);
  connection.send(
    `POST /v1/files HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: multipart/form-data; boundary=b\r\n\r\n${chunk(FIELDS)}`,
  );
  await flood(connection.socket, SPACES, 20);
  connection.send(`${chunk("\r\n--b--\r\n")}0\r\n\r\n`);
  return (await connection.answer()).body;
}

test("uploads that come byte by byte hold up nothing, and take no memory", AGAIN, async () => {
  await using watched = await startWatched(await mkdtemp(join(folder, "data-")), []);
  const longestTurnMs = await watched.watch();
  const peakBytes = await watched.server.peakMemoryBytes(async () => {
    const uploads = Array.from({ length: CONNECTIONS }, () => uploadByBytes(watched.url));
    for (const body of await Promise.all(uploads)) {
      expect(JSON.parse(body).bytes).toBe(3 + 200_000);
    }
  });
  expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  expect(peakBytes).toBeLessThan(MAX_MEMORY_BYTES);
});

test("uploads of nothing but what begins their short boundary hold up nothing", AGAIN, async () => {
  await using watched = await startWatched(await mkdtemp(join(folder, "data-")), []);
  const end = "\r\n--b--\r\n";
  const content = "\r".repeat(60 * 1024);
  const uploads: RawConnection[] = [];
  for (let i = 0; i < 400; i++) {
    const upload = await RawConnection.open(watched.url);
    uploads.push(upload);
    upload.send(
      `POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: ${FIELDS.length + content.length + end.length}\r\nContent-Type: multipart/form-data; boundary=b\r\n\r\n${FIELDS}`,
    );
  }
  // Requests begin in the order in which they come.
  await fetch(`${watched.url}/v1/files`);
  const longestTurnMs = await watched.watch();
  watched.server.signal("SIGSTOP");
  for (const upload of uploads) upload.send(content);
  watched.server.signal("SIGCONT");
  for (const upload of uploads) {
    using _upload = upload;
    upload.send(end);
    expect((await upload.answer()).status).toBe(200);
  }
  expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS);
});

describe("a thousand connections hold up nothing that at the same moment send", () => {
  test.each([
    { name: "requests", text: "GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n", status: 404 },
    { name: "what is no HTTP", text: "no HTTP\r\n\r\n", status: 400 },
  ])("$name", AGAIN, async ({ text, status }) => {
    await using watched = await startWatched(await mkdtemp(join(folder, "data-")), []);
    const connections: RawConnection[] = [];
    for (let i = 0; i < 1_000; i++) connections.push(await RawConnection.open(watched.url));
    const longestTurnMs = await watched.watch();
    watched.server.signal("SIGSTOP");
    for (const connection of connections) connection.send(text);
    watched.server.signal("SIGCONT");
    for (const connection of connections) {
      using _connection = connection;
      expect((await connection.answer()).status).toBe(status);
    }
    expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  });
});

test(
  "hundreds of bodies of many values hold up nothing whose last bytes come at the same moment",
  AGAIN,
  async () => {
    await using watched = await startWatched(await mkdtemp(join(folder, "data-")), []);
    const body = JSON.stringify(
      Object.fromEntries(Array.from({ length: 11_000 }, (_, n) => [`k${n}`, 1])),
    );
    const head = `POST /v1/batches HTTP/1.1\r\nHost: x\r\nContent-Length: ${body.length}\r\n`;
    const connections: RawConnection[] = [];
    for (let i = 0; i < 200; i++) {
      const connection = await RawConnection.open(watched.url);
      connections.push(connection);
      connection.send(`${head}Expect: 100-continue\r\n\r\n`);
      // The server asks for the body, so it has begun with the request.
      expect((await connection.answer()).status).toBe(100);
      await write(connection.socket, body.slice(0, -1));
    }
    // It has read them once it has answered.
    expect((await fetch(`${watched.url}/health`)).status).toBe(200);
    const longestTurnMs = await watched.watch();
    watched.server.signal("SIGSTOP");
    for (const connection of connections) connection.send(body.slice(-1));
    watched.server.signal("SIGCONT");
    for (const connection of connections) {
      using _connection = connection;
      expect((await connection.answer()).status).toBe(400);
    }
    // A turn is measured in the one behind it.
    expect((await fetch(`${watched.url}/health`)).status).toBe(200);
    expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  },
);

/** Other systems let fewer connections wait, whatever a server asks for. */
const isLinux = process.platform === "linux";
test.skipIf(!isLinux)(
  "a thousand connections that come at once are all taken, while the server has no time for them",
  async () => {
    await using watched = await startWatched(await mkdtemp(join(folder, "data-")), []);
    watched.server.signal("SIGSTOP");
    try {
      const opening = Array.from({ length: 1_000 }, () => RawConnection.open(watched.url));
      for (const connection of await Promise.all(opening)) connection[Symbol.dispose]();
    } finally {
      watched.server.signal("SIGCONT");
    }
    expect((await fetch(`${watched.url}/health`)).status).toBe(200);
  },
);

const CHUNKED = "HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
const HASTY =
  "POST /v1/batches HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n";

describe("connections hold up nothing, and take no memory, that at the same moment send", () => {
  test.each([
    {
      name: "thousands of requests ahead",
      text: "GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(3_000),
    },
    { name: "requests ahead that are refused after their body", text: HASTY.repeat(30) },
    { name: "a body in tiny chunks", text: `POST /v1/batches ${CHUNKED}${SPACES}0\r\n\r\n` },
    { name: "a body that nothing reads", text: `POST /v1/nothing ${CHUNKED}${SPACES}0\r\n\r\n` },
  ])("$name", AGAIN, async ({ text }) => {
    await using watched = await startWatched(await mkdtemp(join(folder, "data-")), []);
    const connections: RawConnection[] = [];
    for (let i = 0; i < 200; i++) connections.push(await RawConnection.open(watched.url));
    const longestTurnMs = await watched.watch();
    const peakBytes = await watched.server.peakMemoryBytes(async () => {
      watched.server.signal("SIGSTOP");
      for (const connection of connections) connection.send(text);
      watched.server.signal("SIGCONT");
      for (const connection of connections) {
        using _connection = connection;
        // A connection that sends too much ahead is closed instead.
        await connection.answer().catch(() => {});
      }
      expect((await fetch(`${watched.url}/health`)).status).toBe(200);
    });
    expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS);
    expect(peakBytes).toBeLessThan(MAX_MEMORY_BYTES);
  });
});

test(
  "a model server that asks to be left alone holds up nothing, however many clients wait for it",
  AGAIN,
  async () => {
    const asked = Promise.withResolvers<Socket>();
    const port = await listening(
      createServer((socket) =>
        socket.once("data", (request) => {
          if (request.includes("POST /")) asked.resolve(socket);
        }),
      ),
    );
    const upstream = {
      name: "u",
      base_url: `http://127.0.0.1:${port}/v1`,
      models: ["*"],
      max_concurrency: 1,
    };
    await using watched = await startWatched(await mkdtemp(join(folder, "data-")), [upstream]);
    const body = '{"model":"m","messages":[]}';
    const head = `POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ${body.length}\r\n\r\n`;
    const connections: RawConnection[] = [];
    for (let i = 0; i < 1_500; i++) {
      const connection = await RawConnection.open(watched.url);
      connections.push(connection);
      connection.send(head + body);
    }
    const waiting = async () => {
      const { data } = (await (await fetch(`${watched.url}/v1/admin/upstreams`)).json()) as {
        data: { waiting: number }[];
      };
      return data[0]?.waiting;
    };
    await expect.poll(waiting).toBe(connections.length - 1);
    const longestTurnMs = await watched.watch();
    (await asked.promise).write(
      "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 100\r\nContent-Length: 2\r\n\r\n{}",
    );
    for (const connection of connections) {
      using _connection = connection;
      expect([429, 503]).toContain((await connection.answer()).status);
    }
    expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  },
);

const HEAD = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n";
const HINT = `HTTP/1.1 103 Early Hints\r\n${"a: b\r\n".repeat(1_300)}\r\n`;

interface Flood {
  readonly name: string;
  readonly answer: (socket: Socket) => Promise<void>;
  readonly status: number;
}

const FLOODS: readonly Flood[] = [
  {
    name: "an answer that comes byte by byte",
    answer: async (socket) => {
      await write(socket, `${HEAD}\r\n`);
      await flood(socket, SPACES, 20);
      await write(socket, `${chunk("{}")}0\r\n\r\n`);
    },
    status: 200,
  },
  {
    name: "interim answers without end",
    answer: (socket) => flood(socket, "HTTP/1.1 100 C\r\n\r\n".repeat(3_600)),
    status: 502,
  },
  {
    name: "interim answers with long heads, without end",
    answer: (socket) => flood(socket, HINT.repeat(8)),
    status: 502,
  },
  {
    name: "a head without end",
    answer: async (socket) => {
      await write(socket, HEAD);
      await flood(socket, "a: b\r\n".repeat(10_000));
    },
    status: 502,
  },
];

async function ask(url: string): Promise<number> {
  const answer = await fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: '{"model":"m","messages":[]}',
  });
  await answer.arrayBuffer();
  return answer.status;
}

/** Asks on several connections at once, and returns the statuses. */
const askAtOnce = (url: string) => Promise.all(Array.from({ length: CONNECTIONS }, () => ask(url)));

describe("a model server holds up nothing, and takes no memory, with", () => {
  test.each(FLOODS)("$name", AGAIN, async ({ answer, status }) => {
    const port = await listening(
      createServer((socket) => {
        socket.on("data", (request) => void (request.includes("POST /") && answer(socket)));
      }),
    );
    const upstream = { name: "u", base_url: `http://127.0.0.1:${port}/v1`, models: ["*"] };
    await using watched = await startWatched(await mkdtemp(join(folder, "data-")), [upstream]);
    const longestTurnMs = await watched.watch();
    const peakBytes = await watched.server.peakMemoryBytes(async () => {
      for (const each of await askAtOnce(watched.url)) expect([status, 503]).toContain(each);
    });
    expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS);
    expect(peakBytes).toBeLessThan(MAX_MEMORY_BYTES);
  });
});

test(
  "a proxy that is asked for a tunnel holds up nothing with a head without end",
  AGAIN,
  async () => {
    const head = `HTTP/1.1 200 OK\r\n${"a:\r\n".repeat(100_000)}`;
    const port = await listening(
      createServer((socket) => {
        socket.on("error", () => {});
        socket.once("data", () => void write(socket, head));
      }),
    );
    const upstream = {
      name: "u",
      base_url: "https://models.test/v1",
      proxy: `http://127.0.0.1:${port}`,
      models: ["*"],
    };
    await using watched = await startWatched(await mkdtemp(join(folder, "data-")), [upstream]);
    const longestTurnMs = await watched.watch();
    for (const status of await askAtOnce(watched.url)) expect([502, 503]).toContain(status);
    expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  },
);

test(
  "requests without a key hold up nothing, whatever they send in place of one",
  AGAIN,
  async () => {
    const dataDir = await mkdtemp(join(folder, "data-"));
    const keys = [{ name: "a", key: "key-of-a-0123456789" }];
    await using watched = await startWatched(dataDir, [], { auth: { keys } });
    const longestTurnMs = await watched.watch();
    for (const text of [`${":".repeat(11_900)}\n`, ":".repeat(11_900), `${" ".repeat(11_900)}:`]) {
      const credentials = Buffer.from(text).toString("base64");
      for (const authorization of [`Basic ${credentials}`, `Bearer ${text.trim() || "x"}`]) {
        const { status } = await fetch(`${watched.url}/v1/files`, { headers: { authorization } });
        expect(status).toBe(401);
      }
    }
    expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS);
  },
);

test("receivers of webhooks hold up nothing with heads without end", AGAIN, async () => {
  const COUNT = 32;
  const answered = Array.from({ length: 2 * COUNT }, () => Promise.withResolvers<void>());
  let connectionCount = 0;
  const server = createServer((socket) => {
    const number = connectionCount++;
    socket.on("error", () => {}).on("close", () => answered[number]?.resolve());
    socket.once("data", () => {
      if (number < COUNT) socket.end("HTTP/1.1 204 No Content\r\n\r\n");
      else void flood(socket, `HTTP/1.1 204 No Content\r\n${"a: b\r\n".repeat(10_000)}`);
    });
  });
  const url = `http://127.0.0.1:${await listening(server)}`;
  const endpoints = Array.from({ length: COUNT }, (_, n) => ({ name: `w${n}`, secret: "x", url }));
  const webhooks = { endpoints, allow_private_hosts: ["127.0.0.1"] };
  await using watched = await startWatched(await mkdtemp(join(folder, "data-")), [], { webhooks });
  const closed = (from: number) =>
    Promise.all(answered.slice(from, from + COUNT).map(({ promise }) => promise));
  // The first event loads what sends it.
  await submitLines(watched.openai, chatLines(1));
  await closed(0);
  const longestTurnMs = await watched.watch();
  await submitLines(watched.openai, chatLines(1));
  await closed(COUNT);
  expect(await longestTurnMs()).toBeLessThan(MAX_TURN_MS);
});
