"""What the official Python client does with a batchd, unchanged.

Reads one check a line from standard input, `{"id", "name", "args"}`, and answers each with a line
`{"id", "problem"}`, where the problem is null when the check held.
"""

import hashlib
import io
import json
import sys
import tempfile
import time
import traceback
import uuid
import warnings
from pathlib import Path

import openai
from openai import AsyncOpenAI, AzureOpenAI, OpenAI

CHECKS = {}
ENDED = ("completed", "failed", "cancelled", "expired")


def check(function):
    CHECKS[function.__name__] = function
    return function


def client(url, **options):
    return OpenAI(base_url=f"{url}/v1", api_key="sk-not-needed", max_retries=0, **options)


def line(custom_id, content="Hello"):
    body = {"model": "test-model", "messages": [{"role": "user", "content": content}]}
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    )


CONTENT = (line("one") + "\n" + line("two") + "\n").encode()


def create(api, file_id, **more):
    return api.batches.create(
        input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h", **more
    )


def ended(api, batch):
    deadline = time.monotonic() + 30
    while batch.status not in ENDED:
        assert time.monotonic() < deadline, f"no end in sight: {batch}"
        time.sleep(0.02)
        batch = api.batches.retrieve(batch.id)
    return batch


@check
def whole_batch(url):
    api = client(url)
    uploaded = api.files.create(file=("in.jsonl", CONTENT), purpose="batch")
    batch = ended(api, create(api, uploaded.id, metadata={"by": "python"}))
    assert batch.status == "completed", batch
    assert batch.metadata == {"by": "python"}, batch
    assert batch.request_counts.completed == 2, batch
    assert batch.usage.total_tokens > 0, batch
    rows = [json.loads(row) for row in api.files.content(batch.output_file_id).text.splitlines()]
    assert [row["custom_id"] for row in rows] == ["one", "two"], rows


@check
def upload_path(url):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "questions.jsonl"
        path.write_bytes(CONTENT)
        uploaded = client(url).files.create(file=path, purpose="batch")
    assert (uploaded.filename, uploaded.bytes) == ("questions.jsonl", len(CONTENT)), uploaded


@check
def upload_bytes(url):
    uploaded = client(url).files.create(file=CONTENT, purpose="batch")
    assert uploaded.filename == "upload", uploaded


@check
def upload_expiry(url):
    expires_after = {"anchor": "created_at", "seconds": 3600}
    uploaded = client(url).files.create(
        file=("in.jsonl", CONTENT), purpose="batch", expires_after=expires_after
    )
    assert uploaded.expires_at == uploaded.created_at + 3600, uploaded


@check
def cancel(url):
    api = client(url)
    uploaded = api.files.create(
        file=("in.jsonl", (line("slow", "[[hang]]") + "\n").encode()), purpose="batch"
    )
    batch = create(api, uploaded.id)
    assert api.batches.cancel(batch.id).status == "cancelling"
    assert ended(api, batch).status == "cancelled"


@check
def delete(url):
    api = client(url)
    uploaded = api.files.create(file=("in.jsonl", CONTENT), purpose="batch")
    assert api.files.delete(uploaded.id).deleted is True
    try:
        api.files.retrieve(uploaded.id)
    except openai.NotFoundError as error:
        assert error.body["param"] == "id", error.body
    else:
        raise AssertionError("a deleted file was found")


@check
def pages(url):
    api = client(url)
    made = {create(api, "file-x").id for _ in range(5)}
    seen = [batch.id for batch in api.batches.list(limit=2)]
    assert made <= set(seen), "a batch is missing"
    assert len(seen) == len(set(seen)), "a batch came twice"


@check
def file_pages(url):
    api = client(url)
    made = {
        api.files.create(file=("in.jsonl", CONTENT), purpose="vision").id for _ in range(3)
    }
    seen = [file.id for file in api.files.list(limit=2, purpose="vision", order="asc")]
    assert made <= set(seen), "a file is missing"
    assert len(seen) == len(set(seen)), "a file came twice"


@check
def wait_for_processing(url):
    api = client(url)
    uploaded = api.files.create(file=("in.jsonl", CONTENT), purpose="batch")
    waited = api.files.wait_for_processing(uploaded.id, max_wait_seconds=5)
    assert waited.status == "processed", waited


@check
def request_id(url):
    batch = create(client(url), "file-x")
    assert batch._request_id.startswith("req_"), batch._request_id


@check
def error_classes(url):
    api = client(url)
    for expected, call in (
        (openai.BadRequestError, lambda: api.batches.retrieve("nonsense")),
        (openai.NotFoundError, lambda: api.batches.retrieve("batch_x")),
        (openai.NotFoundError, lambda: api.models.retrieve("ft:123")),
        (openai.BadRequestError, lambda: api.files.create(file=b"notes", purpose="batch")),
    ):
        try:
            call()
        except expected as error:
            assert error.type == "invalid_request_error", error
            assert error.request_id.startswith("req_"), error.request_id
        else:
            raise AssertionError(f"{expected.__name__} was not raised")


@check
def more_error_classes(url):
    api = client(url)
    key = {"Idempotency-Key": uuid.uuid4().hex}
    create(api, "file-x", extra_headers=key)

    def streamed():
        with api.files.with_streaming_response.content("file-x") as response:
            response.read()

    for expected, status, call in (
        (openai.UnprocessableEntityError, 422, lambda: create(api, "file-y", extra_headers=key)),
        (openai.APIStatusError, 413, lambda: create(api, "file-" + "x" * 200_000)),
        (openai.NotFoundError, 404, streamed),
        (openai.NotFoundError, 404, lambda: api.files.content("file-x")),
    ):
        try:
            call()
        except expected as error:
            assert error.status_code == status, error
            assert error.type == "invalid_request_error", error
        else:
            raise AssertionError(f"{expected.__name__} was not raised")
    # The model server holds its answer, so that no machine is fast enough to be in time.
    slow = [{"role": "user", "content": "[[delay 5000]]"}]
    try:
        api.with_options(timeout=0.5).chat.completions.create(model="test-model", messages=slow)
    except openai.APITimeoutError:
        pass
    else:
        raise AssertionError("no timeout")


@check
def raw_responses(url):
    api = client(url)
    raw = api.files.with_raw_response.create(file=("in.jsonl", CONTENT), purpose="batch")
    assert (raw.status_code, raw.headers["content-type"]) == (200, "application/json"), raw
    assert raw.request_id == raw.headers["x-request-id"], raw
    uploaded = raw.parse()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert api.files.retrieve_content(uploaded.id) == CONTENT.decode()
    made = [create(api, uploaded.id).id for _ in range(2)]
    with api.batches.with_streaming_response.retrieve(made[0]) as response:
        assert response.parse().id == made[0], response
    page = api.batches.with_raw_response.list(limit=1).parse()
    assert page.has_next_page(), page
    assert [each.data[0].id for each in (page, page.get_next_page())] == made[::-1], page


@check
def conflict_is_not_retried(url):
    requests = []
    api = client(url).with_options(max_retries=2)
    api._client.event_hooks["request"].append(lambda request: requests.append(request.url.path))
    batch = ended(api, create(api, "file-x"))
    requests.clear()
    try:
        api.batches.cancel(batch.id)
    except openai.ConflictError:
        assert len(requests) == 1, requests
    else:
        raise AssertionError("a failed batch was cancelled")


@check
def wrong_key(url, keyed_url):
    del url
    try:
        OpenAI(base_url=f"{keyed_url}/v1", api_key="sk-wrong", max_retries=0).batches.list()
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key", error
    else:
        raise AssertionError("a wrong key was taken")


@check
def models(url):
    api = client(url)
    assert api.models.retrieve("org/model:tag").id == "org/model:tag"
    assert "test-model" in [model.id for model in api.models.list()]


@check
def asynchronous(url):
    import asyncio

    async def run():
        async with AsyncOpenAI(
            base_url=f"{url}/v1", api_key="sk-not-needed", max_retries=0
        ) as api:
            uploaded = await api.files.create(file=("in.jsonl", CONTENT), purpose="batch")
            batch = await api.batches.create(
                input_file_id=uploaded.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
            )
            assert (await api.batches.retrieve(batch.id)).id == batch.id
            assert [each.id async for each in api.batches.list(limit=1)][0] == batch.id

    asyncio.run(run())


@check
def upload_file_chunked(url):
    api = client(url)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "questions.jsonl"
        path.write_bytes(CONTENT)
        upload = api.uploads.upload_file_chunked(
            file=path, mime_type="text/jsonl", purpose="batch", part_size=100
        )
    assert (upload.status, upload.file.filename) == ("completed", "questions.jsonl"), upload
    assert api.files.content(upload.file.id).read() == CONTENT
    upload = api.uploads.upload_file_chunked(
        file=CONTENT, filename="m.jsonl", bytes=len(CONTENT), mime_type="txt", purpose="batch"
    )
    assert upload.file.bytes == len(CONTENT), upload


@check
def upload_with_md5(url):
    api = client(url)
    upload = api.uploads.create(
        filename="in.jsonl", purpose="batch", bytes=len(CONTENT), mime_type="text/jsonl"
    )
    halves = (CONTENT[:50], CONTENT[50:])
    ids = [api.uploads.parts.create(upload.id, data=half).id for half in halves]
    try:
        api.uploads.complete(upload.id, part_ids=ids, md5="0" * 32)
    except openai.BadRequestError as error:
        assert error.param == "md5", error
    else:
        raise AssertionError("a wrong md5 was taken")
    md5 = hashlib.md5(CONTENT).hexdigest()
    completed = api.uploads.complete(upload.id, part_ids=ids, md5=md5)
    assert (completed.status, completed.file.bytes) == ("completed", len(CONTENT)), completed


@check
def upload_empty_file_chunked(url):
    upload = client(url).uploads.upload_file_chunked(
        file=b"", filename="e.txt", bytes=0, mime_type="text/plain", purpose="user_data"
    )
    assert (upload.status, upload.file.bytes) == ("completed", 0), upload


@check
def verify_webhook(url, headers, body, secret):
    event = client(url).webhooks.unwrap(body, headers, secret=secret)
    assert event.type == "batch.completed", event


@check
def azure(url):
    for api in (
        AzureOpenAI(azure_endpoint=url, api_key="any", api_version="2024-10-21", max_retries=0),
        OpenAI(base_url=f"{url}/openai/v1/", api_key="any", max_retries=0),
    ):
        uploaded = api.files.create(file=("in.jsonl", CONTENT), purpose="batch")
        batch = ended(api, create(api, uploaded.id))
        assert batch.status == "completed", batch


@check
def content_helpers(url):
    api = client(url)
    uploaded = api.files.create(file=("in.jsonl", CONTENT), purpose="batch")
    assert api.files.content(uploaded.id).read() == CONTENT
    with api.files.with_streaming_response.content(uploaded.id) as response:
        assert b"".join(response.iter_bytes(7)) == CONTENT
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.jsonl"
        api.files.content(uploaded.id).write_to_file(path)
        assert path.read_bytes() == CONTENT


@check
def content_lines(url):
    api = client(url)
    prompts = ["a\x85b", "a\u2028b", "a\u2029b"]
    content = "".join(line(prompt, prompt) + "\n" for prompt in prompts).encode()
    uploaded = api.files.create(file=("in.jsonl", content), purpose="batch")
    batch = ended(api, create(api, uploaded.id))
    answers = api.files.content(batch.output_file_id)
    for rows in (answers.iter_lines(), answers.text.splitlines()):
        assert [json.loads(row)["custom_id"] for row in rows] == prompts


@check
def uploads_from_memory(url):
    uploaded = client(url).files.create(file=io.BytesIO(CONTENT), purpose="batch")
    assert uploaded.bytes == len(CONTENT), uploaded


def problem_of(name, args):
    function = CHECKS.get(name)
    if function is None:
        return f"checks.py has no check named {name}"
    try:
        function(**args)
    except Exception:
        return traceback.format_exc(limit=-3)
    return None


for text in sys.stdin:
    asked = json.loads(text)
    answer = {"id": asked["id"], "problem": problem_of(asked["name"], asked["args"])}
    print(json.dumps(answer), flush=True)
