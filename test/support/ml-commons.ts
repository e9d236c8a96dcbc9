/**
 * Imitates a remote batch of OpenSearch ML Commons. It has the substitutions of a connector, its four calls byte by
 * byte, the parameters that it takes from answers, and the task states.
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

/** ML Commons derives the other two actions only when the address of `batch_predict` names one of these services. */
const KNOWN_SERVICES = /sagemaker|openai|bedrock|cohere/;

/** The patterns for task states, in the order in which ML Commons searches the text for them. */
const STATES: readonly (readonly [state: string, pattern: RegExp])[] = [
  ["CANCELLING", /(stopping|cancelling)/i],
  ["CANCELLED", /(stopped|cancelled)/i],
  ["COMPLETED", /(complete|completed|partiallyCompleted)/i],
  ["EXPIRED", /(expired|timeout)/i],
  ["FAILED", /(failed)/i],
];

export const taskState = (status: string): string =>
  STATES.find(([, pattern]) => pattern.test(status))?.[0] ?? "RUNNING";

/** Escapes a JSON string like Java, which also escapes slashes. */
const escaped = (text: string) => JSON.stringify(text).slice(1, -1).replaceAll("/", "\\/");

const substituted = (template: string, kind: "parameters" | "credential", values: Texts) =>
  template.replaceAll(/\$\{(\w+)\.(\w+)\}/g, (whole, of: string, name: string) =>
    of === kind && values[name] !== undefined ? values[name] : whole,
  );

/** The differences between versions of ML Commons: some send a body with a GET when its action names one. */
export interface Habits {
  readonly sendsBodyWithGet: boolean;
}

/** One connector and its open connection. The address of its URLs only appears in `Host`. */
export class MlCommons implements Disposable {
  readonly #connector: Connector;
  readonly #connection: RawConnection;
  readonly #habits: Habits;
  /** The merged answers so far. */
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

  /** Returns every text at the top of the job. */
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
    // Doubled slashes stay, because ML Commons sends the path as it built it.
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

  /** All calls use the headers of `predict`. Without that action there are none. */
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
