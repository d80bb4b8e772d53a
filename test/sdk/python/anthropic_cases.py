"""Runs the anthropic package, in versions before and after major version 2, against the service."""

import asyncio
import functools
from typing import Any

import anthropic
from anthropic import Anthropic, AsyncAnthropic, beta_tool
from pydantic import BaseModel

from cases import (
    ENDLESS,
    GIVEN,
    SLASHED,
    UNICODE,
    WEATHER,
    WEATHER_ARGUMENTS,
    answered,
    call_while_full,
    fails,
    main,
    occupied,
    on_full,
    until,
    until_running,
    use_up_limited,
)

TOOL: Any = {"name": "get_weather", "input_schema": WEATHER}


class Forecast(BaseModel):
    city: str
    days: int


# Clients are cached, because each new client loads the certificates of the machine.
@functools.cache
def client(service: str = "free", **options: Any) -> Anthropic:
    return Anthropic(**{"api_key": GIVEN["key"], "base_url": GIVEN[service], "max_retries": 0, **options})


def say(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "echo-1", "max_tokens": 1000, "messages": [{"role": "user", "content": content}], **more}


def text_of(events: list[Any]) -> str:
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    return "".join(delta.text for delta in deltas if delta.type == "text_delta")


def case_gets_a_whole_message_with_usage_and_request_id() -> None:
    answer = client().messages.create(**say(UNICODE))
    assert [block.text for block in answer.content] == [UNICODE]
    assert answer.stop_reason == "end_turn" and answer.role == "assistant"
    assert answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0
    assert answer._request_id and answer._request_id.startswith("req_")


def case_streams_deltas_that_concatenate_to_the_message() -> None:
    events = list(client().messages.create(**say(UNICODE), stream=True))
    assert text_of(events) == UNICODE
    assert [events[0].type, events[-1].type] == ["message_start", "message_stop"]


def case_assembles_a_stream_into_the_message_of_the_whole_response() -> None:
    with client().messages.stream(**say(UNICODE)) as stream:
        assert "".join(stream.text_stream) == UNICODE
        streamed = stream.get_final_message()
    whole = client().messages.create(**say(UNICODE))
    assert streamed.content[0].text == whole.content[0].text
    assert (streamed.usage.input_tokens, streamed.usage.output_tokens) == (
        whole.usage.input_tokens,
        whole.usage.output_tokens,
    )


def case_gets_a_tool_call_whole_and_streamed() -> None:
    forced = {"type": "tool", "name": "get_weather"}
    for content, choice in (("hello", forced), ("hello", {"type": "any"}), ("please get_weather", {"type": "auto"})):
        body = say(content, tools=[TOOL], tool_choice=choice)
        with client().messages.stream(**body) as stream:
            streamed = stream.get_final_message()
        for answer in (client().messages.create(**body), streamed):
            [call] = answer.content
            assert answer.stop_reason == "tool_use" and call.type == "tool_use", answer
            assert call.id.startswith("toolu_") and call.name == "get_weather"
            assert call.input == WEATHER_ARGUMENTS


def case_continues_with_the_result_of_a_tool() -> None:
    body = say("please get_weather", tools=[TOOL])
    first = client().messages.create(**body)
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "sunny"}
    body["messages"] += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    assert client().messages.create(**body).content[0].text == "sunny"


def case_runs_tools_automatically_until_the_answer() -> None:
    seen: list[Any] = []

    @beta_tool
    def get_weather(city: str, days: int) -> str:
        """The weather of a city."""
        seen.append((city, days))
        return "it will be sunny"

    for stream in (False, True):
        runner = client().beta.messages.tool_runner(**say("please get_weather"), tools=[get_weather], stream=stream)
        assert runner.until_done().content[0].text == "it will be sunny"
    assert seen == [("city", 1), ("city", 1)], seen


def case_parses_structured_output() -> None:
    answer = client().messages.parse(**say("a forecast"), output_format=Forecast)
    assert isinstance(answer.parsed_output, Forecast)


def case_counts_as_many_tokens_as_the_response_reports() -> None:
    body = say("one two three", system="be brief")
    counted = client().messages.count_tokens(**{name: body[name] for name in ("model", "messages", "system")})
    assert counted.input_tokens == client().messages.create(**body).usage.input_tokens


def case_raises_an_error_of_the_right_class() -> None:
    wrong = client(api_key="sk-wrong-0000000000")
    assert fails(anthropic.AuthenticationError, lambda: wrong.messages.create(**say("x"))).status_code == 401
    for stream in (False, True):
        body = {**say("x"), "model": "none", "stream": stream}
        unknown = fails(anthropic.NotFoundError, lambda: client().messages.create(**body))
        assert unknown.body["error"]["type"] == "not_found_error"
        assert unknown.request_id == unknown.body["request_id"]
    too_hot = say("x", extra_body={"temperature": 5})
    bad = fails(anthropic.BadRequestError, lambda: client().messages.create(**too_hot))
    assert bad.body["error"]["message"].startswith("temperature: ")
    use_up_limited()
    limited = fails(anthropic.RateLimitError, lambda: client("limited").messages.create(**say("x")))
    assert limited.body["error"]["type"] == "rate_limit_error"


def open_endless() -> Any:
    return client("full").messages.create(**say(ENDLESS), stream=True)


@on_full
def case_raises_its_error_for_an_overload_when_the_service_is_full() -> None:
    with occupied(open_endless):
        error = fails(anthropic.OverloadedError, lambda: client("full").messages.create(**say("x")))
    assert error.status_code == 529 and error.body["error"]["type"] == "overloaded_error"


@on_full
def case_retries_automatically_when_the_service_was_full() -> None:
    retrying = client("full", max_retries=2)
    answer = call_while_full(open_endless, 529, lambda: retrying.messages.create(**say("at last")))
    assert answer.content[0].text == "at last"


def case_does_not_retry_errors_that_a_retry_cannot_fix() -> None:
    before = answered("free", 504)
    call = client(max_retries=2).messages.create
    fails(anthropic.InternalServerError, lambda: call(**say("!echo fail=timeout")))
    until(lambda: answered("free", 504) == before + 1)


def case_raises_api_status_error_in_the_middle_of_a_stream() -> None:
    script = "!echo fail=upstream_error after=2\none two three four"
    events: list[Any] = []

    def read() -> None:
        for event in client().messages.create(**say(script), stream=True):
            events.append(event)

    error = fails(anthropic.APIStatusError, read)
    assert text_of(events) == "one two"
    assert error.body["error"]["type"] == "api_error"


def case_cancels_the_work_when_it_closes_a_stream() -> None:
    with client().messages.stream(**say(ENDLESS)) as stream:
        next(iter(stream.text_stream))
        until_running("free", 1)
    until_running("free", 0)


def case_cancels_the_work_when_its_own_timeout_expires() -> None:
    call = client(timeout=0.2).messages.create
    fails(anthropic.APITimeoutError, lambda: call(**say(ENDLESS)))
    until_running("free", 0)


async def case_cancels_the_work_when_a_task_is_cancelled() -> None:
    async with AsyncAnthropic(api_key=GIVEN["key"], base_url=GIVEN["free"]) as asynchronous:
        task = asyncio.create_task(asynchronous.messages.create(**say(ENDLESS)))
        await asyncio.to_thread(until_running, "free", 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        await asyncio.to_thread(until_running, "free", 0)


def case_lists_models_and_retrieves_one_whose_id_has_a_slash() -> None:
    assert [model.id for model in client().models.list()] == ["echo-1", SLASHED]
    page = client().models.list(limit=1)
    model = page.data[0]
    assert (model.type, model.display_name, model.created_at.year) == ("model", "echo-1", 2026)
    assert (page.has_more, page.first_id, page.last_id) == (True, "echo-1", "echo-1")
    assert client().models.retrieve(SLASHED).id == SLASHED
    fails(anthropic.NotFoundError, lambda: client().models.retrieve("no/such"))


async def case_makes_concurrent_calls_with_matching_responses() -> None:
    async with AsyncAnthropic(api_key=GIVEN["key"], base_url=GIVEN["free"]) as asynchronous:

        async def ask(word: str) -> str:
            return (await asynchronous.messages.create(**say(word))).content[0].text

        words = [f"word {i}" for i in range(16)]
        assert await asyncio.gather(*(ask(word) for word in words)) == words


def case_accepts_its_key_in_either_header() -> None:
    bearer = client(api_key=None, auth_token=GIVEN["key"])
    assert bearer.messages.create(**say("let me in")).content[0].text == "let me in"
    # The older package writes the header with these capital letters. With the same spelling, this header replaces the package's own header.
    headers = {"X-Api-Key": GIVEN["key"]}
    by_header = Anthropic(api_key="sk-wrong-0000000000", default_headers=headers, base_url=GIVEN["free"])
    assert by_header.messages.create(**say("let me in")).content[0].text == "let me in"


if __name__ == "__main__":
    main(globals())
