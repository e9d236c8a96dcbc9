/** How long a batch may take: 24 hours, and what else the operator allows. */
import { expect, test } from "vitest";
import { forAllTests } from "../support/for-all-tests.ts";
import { chatLines, startTestService } from "../support/service.ts";
import {
  createBatchBody,
  startTestApi,
  type TestApi,
  type Wire,
  wireOf,
} from "../support/test-http.ts";

const HOUR_SECONDS = 3_600;

const api = forAllTests(await startTestApi({ completionWindows: ["24h", "72h", "7d"] }));

const create = (completion_window: string | undefined, on: TestApi = api) =>
  on.fetch("/v1/batches", {
    method: "POST",
    body: createBatchBody("file-x", { completion_window }),
  });

const windowed = async (response: Response) =>
  (await response.json()) as Wire & { readonly completion_window: string };

test.each([
  [undefined, "24h", 24],
  ["24h", "24h", 24],
  ["72h", "72h", 72],
  ["7d", "7d", 168],
])("%s is the window %s, which ends after %i hours", async (asked, window, hours) => {
  const made = await windowed(await create(asked));
  expect(made.completion_window).toBe(window);
  expect(made.expires_at).toBe(made.created_at + hours * HOUR_SECONDS);
  expect(await windowed(await api.fetch(`/v1/batches/${made.id}`))).toMatchObject({
    completion_window: window,
    expires_at: made.expires_at,
  });
});

test("another window is refused with those that there are", async () => {
  for (const window of ["48h", "168h", "", "24 h"]) {
    const refused = await create(window);
    expect([refused.status, (await wireOf(refused)).error]).toEqual([
      400,
      {
        message: `Invalid value: '${window}'. Supported values are: '24h', '72h', and '7d'.`,
        type: "invalid_request_error",
        param: "completion_window",
        code: "invalid_value",
      },
    ]);
  }
});

test("unless the operator allows more, 24h is the only one, as with OpenAI", async () => {
  await using plain = await startTestApi();
  expect((await create(undefined, plain)).status).toBe(200);
  const { error } = await wireOf(await create("72h", plain));
  expect(error.message).toBe("Invalid value: '72h'. Value must be '24h'.");
});

test("windows that are configured hold at once, and their batches go on when they no longer are", async () => {
  await using service = await startTestService();
  const input_file_id = await service.upload(chatLines(1));
  const asked = {
    input_file_id,
    endpoint: "/v1/chat/completions" as const,
    completion_window: "7d" as "24h",
  };
  await expect(service.openai.batches.create(asked)).rejects.toMatchObject({ status: 400 });
  service.reconfigure({ limits: { completion_windows: ["24h", "7d"] } });
  const { id, created_at } = await service.openai.batches.create(asked);
  service.reconfigure({});
  expect(await service.openai.batches.retrieve(id)).toMatchObject({
    completion_window: "7d",
    expires_at: created_at + 168 * HOUR_SECONDS,
  });
});
