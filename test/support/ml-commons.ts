/**
 * What OpenSearch ML Commons sends for a remote batch, and what it makes of the answers: the substitutions of a
 * connector, its four calls byte by byte, the parameters that answers turn into, and the task states.
 */
import { type RawAnswer, RawConnection } from "./raw-http.ts";

type Texts = Readonly<Record<string, string>>;

interface Action {
  readonly action_type: string;
  readonly method: string;
  readonly url: string;
  readonly headers: Texts;
  readonly request_body?: string | null;
}

export interface Connector {
  readonly parameters: Texts;
  readonly credential: Texts;
  readonly actions: readonly Action[];
}

/** Only when the address of `batch_predict` says one of these are the other two actions derived from it. */
const KNOWN_SERVICES = /sagemaker|openai|bedrock|cohere/;

/** In the order in which they are tried, each anywhere in the text. */
const STATES: readonly (readonly [state: string, pattern: RegExp])[] = [
  ["CANCELLING", /(stopping|cancelling)/i],
  ["CANCELLED", /(stopped|cancelled)/i],
  ["COMPLETED", /(complete|completed|partiallyCompleted)/i],
  ["EXPIRED", /(expired|timeout)/i],
  ["FAILED", /(failed)/i],
];

export const taskState = (status: string): string =>
  STATES.find(([, pattern]) => pattern.test(status))?.[0] ?? "RUNNING";

/** Java's escaping of JSON strings, which escapes slashes too. */
const escaped = (text: string) => JSON.stringify(text).slice(1, -1).replaceAll("/", "\\/");

const substituted = (template: string, kind: "parameters" | "credential", values: Texts) =>
  template.replaceAll(/\$\{(\w+)\.(\w+)\}/g, (whole, of: string, name: string) =>
    of === kind && values[name] !== undefined ? values[name] : whole,
  );

/** Versions differ in whether a GET carries the body that its action names. */
export interface Habits {
  readonly sendsBodyWithGet: boolean;
}

/** One connector and the connection it keeps open. The address of its URLs stays in `Host` alone. */
export class MlCommons implements Disposable {
  readonly #connector: Connector;
  readonly #connection: RawConnection;
  readonly #habits: Habits;
  /** The answers so far, laid one over the other. */
  remoteJob: Record<string, unknown> = {};

  private constructor(connector: Connector, connection: RawConnection, habits: Habits) {
    this.#connector = connector;
    this.#connection = connection;
    this.#habits = habits;
  }

  static async open(
    connector: Connector,
    url: string,
    habits: Habits = { sendsBodyWithGet: false },
  ): Promise<MlCommons> {
    return new MlCommons(connector, await RawConnection.open(url), habits);
  }

  predict(parameters: Texts): Promise<RawAnswer> {
    return this.#call(this.#action("predict"), parameters);
  }

  async batchPredict(parameters: Texts): Promise<RawAnswer> {
    const request = Object.fromEntries(
      Object.entries(parameters).map(([name, value]) => [name, escaped(value)]),
    );
    const answer = await this.#call(this.#action("batch_predict"), request);
    this.#keep(answer);
    return answer;
  }

  async status(): Promise<RawAnswer> {
    const answer = await this.#call(
      this.#action("batch_predict_status") ?? this.#derived("GET", ""),
      this.#parametersOfJob(),
    );
    this.#keep(answer);
    return answer;
  }

  cancel(): Promise<RawAnswer> {
    return this.#call(
      this.#action("cancel_batch_predict") ?? this.#derived("POST", "/cancel"),
      this.#parametersOfJob(),
    );
  }

  get taskState(): string {
    return taskState(String(this.remoteJob["status"]));
  }

  #action(type: string): Action | undefined {
    const found = this.#connector.actions.find(({ action_type }) => action_type === type);
    const isDerived = type !== "predict" && type !== "batch_predict";
    return isDerived && found?.request_body == null ? undefined : found;
  }

  #derived(method: string, end: string): Action {
    const batchPredict = this.#action("batch_predict");
    if (batchPredict === undefined || !KNOWN_SERVICES.test(batchPredict.url)) {
      throw new Error("Please configure the action type in the connector");
    }
    const url = `${batchPredict.url}/\${parameters.id}${end}`;
    return { ...batchPredict, method, url, request_body: null };
  }

  /** Every text at the top of the job. */
  #parametersOfJob(): Texts {
    return Object.fromEntries(
      Object.entries(this.remoteJob).filter(
        (entry): entry is [string, string] => typeof entry[1] === "string",
      ),
    );
  }

  #keep({ status, body }: RawAnswer): void {
    if (status >= 200 && status < 300) Object.assign(this.remoteJob, JSON.parse(body));
  }

  async #call(action: Action | undefined, parameters: Texts): Promise<RawAnswer> {
    if (action === undefined) throw new Error("the connector has no such action");
    const values = { ...this.#connector.parameters, ...parameters };
    const url = new URL(substituted(action.url, "parameters", values));
    const isGet = action.method === "GET";
    const body =
      isGet && !this.#habits.sendsBodyWithGet
        ? ""
        : substituted(action.request_body ?? "", "parameters", values);
    if (body !== "") JSON.parse(body);
    const headers = Object.entries(this.#headers()).map(([name, value]) => `${name}: ${value}`);
    // Doubled slashes stay: the path goes out as it was put together.
    const path = url.href.slice(url.origin.length);
    this.#connection.send(
      [
        `${action.method} ${path} HTTP/1.1`,
        `Host: ${url.host}`,
        ...headers,
        "Content-Type: application/json",
        `Content-Length: ${Buffer.byteLength(body)}`,
        "",
        Buffer.from(body).toString("latin1"),
      ].join("\r\n"),
    );
    return this.#connection.answer();
  }

  /** All calls borrow those of `predict`; without that action there are none. */
  #headers(): Texts {
    const { actions, credential } = this.#connector;
    const headers = actions.find(({ action_type }) => action_type === "predict")?.headers ?? {};
    return Object.fromEntries(
      Object.entries(headers).map(([name, value]) => [
        name,
        substituted(value, "credential", credential),
      ]),
    );
  }

  [Symbol.dispose](): void {
    this.#connection[Symbol.dispose]();
  }
}
