"""Runs the openai package, of any major version from 1 on, against the service."""

import asyncio
import functools
import json
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI
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

TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}
FORCED: Any = {"type": "function", "function": {"name": "get_weather"}}


class Forecast(BaseModel):
    city: str
    days: int


# Clients are cached, because each new client loads the certificates of the machine.
@functools.cache
def client(service: str = "free", **options: Any) -> OpenAI:
    return OpenAI(**{"api_key": GIVEN["key"], "base_url": GIVEN[service] + "/v1", "max_retries": 0, **options})


def say(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "echo-1", "messages": [{"role": "user", "content": content}], **more}


def text_of(chunks: list[Any]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def case_gets_a_whole_response_with_usage_and_request_id() -> None:
    answer = client().chat.completions.create(**say(UNICODE))
    assert answer.choices[0].message.content == UNICODE, answer
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage and answer.usage.completion_tokens > 0
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id and answer._request_id.startswith("req_")


def case_streams_deltas_that_concatenate_to_the_answer_with_usage_if_requested() -> None:
    options = {"include_usage": True}
    chunks = list(client().chat.completions.create(**say(UNICODE), stream=True, stream_options=options))
    assert text_of(chunks) == UNICODE
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    plain = list(client().chat.completions.create(**say(UNICODE), stream=True))
    assert text_of(plain) == UNICODE and all(chunk.usage is None for chunk in plain)


def case_assembles_a_stream_into_a_completion_with_its_own_helper() -> None:
    with client().chat.completions.stream(**say(UNICODE), stream_options={"include_usage": True}) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        answer = stream.get_final_completion()
    assert "".join(deltas) == UNICODE
    assert answer.choices[0].message.content == UNICODE and answer.choices[0].message.role == "assistant"
    assert answer.usage and answer.usage.completion_tokens > 0


def case_gets_a_tool_call_whole_and_streamed() -> None:
    for content, choice in (("hello", FORCED), ("hello", "required"), ("please get_weather", "auto")):
        body = say(content, tools=[TOOL], tool_choice=choice)
        whole = client().chat.completions.create(**body)
        with client().chat.completions.stream(**body) as stream:
            streamed = stream.get_final_completion()
        for answer in (whole, streamed):
            assert answer.choices[0].finish_reason == "tool_calls", answer
            [call] = answer.choices[0].message.tool_calls
            assert call.id.startswith("call_") and call.type == "function"
            assert call.function.name == "get_weather"
            assert json.loads(call.function.arguments) == WEATHER_ARGUMENTS


def case_continues_with_the_result_of_a_tool() -> None:
    first = client().chat.completions.create(**say("please get_weather", tools=[TOOL]))
    message = first.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    messages = [{"role": "user", "content": "please get_weather"}, message, result]
    second = client().chat.completions.create(model="echo-1", messages=messages, tools=[TOOL])
    assert second.choices[0].message.content == "sunny"


def case_parses_structured_output_whole_and_streamed() -> None:
    whole = client().chat.completions.parse(**say("a forecast"), response_format=Forecast)
    with client().chat.completions.stream(**say("a forecast"), response_format=Forecast) as stream:
        streamed = stream.get_final_completion()
    for answer in (whole, streamed):
        assert isinstance(answer.choices[0].message.parsed, Forecast), answer


def case_gets_several_choices_with_logprobs() -> None:
    body = say("one two", n=2, logprobs=True, top_logprobs=1)
    with client().chat.completions.stream(**body) as stream:
        streamed = stream.get_final_completion()
    for answer in (client().chat.completions.create(**body), streamed):
        assert [choice.message.content for choice in answer.choices] == ["one two", "one two"]
        for choice in answer.choices:
            assert "".join(each.token for each in choice.logprobs.content) == "one two"


def case_raises_an_error_of_the_right_class() -> None:
    wrong = fails(openai.AuthenticationError, lambda: client(api_key="sk-wrong-0000000000").models.list())
    assert wrong.code == "invalid_api_key" and wrong.status_code == 401
    for stream in (False, True):
        body = {**say("x"), "model": "none", "stream": stream}
        unknown = fails(openai.NotFoundError, lambda: client().chat.completions.create(**body))
        assert unknown.code == "model_not_found" and unknown.param == "model"
        assert unknown.request_id.startswith("req_")
    bad = fails(openai.BadRequestError, lambda: client().chat.completions.create(**say("x", temperature=5)))
    assert bad.param == "temperature" and bad.code == "decimal_above_max_value"
    assert bad.type == "invalid_request_error"
    use_up_limited()
    limited = fails(openai.RateLimitError, lambda: client("limited").chat.completions.create(**say("x")))
    assert limited.code == "rate_limit_exceeded"


def open_endless() -> Any:
    return client("full").chat.completions.create(**say(ENDLESS), stream=True)


@on_full
def case_raises_internal_server_error_when_the_service_is_full() -> None:
    with occupied(open_endless):
        error = fails(openai.InternalServerError, lambda: client("full").chat.completions.create(**say("x")))
    assert error.status_code == 503 and error.code == "overloaded"


@on_full
def case_retries_automatically_when_the_service_was_full() -> None:
    retrying = client("full", max_retries=2)
    answer = call_while_full(open_endless, 503, lambda: retrying.chat.completions.create(**say("at last")))
    assert answer.choices[0].message.content == "at last"


def case_does_not_retry_errors_that_a_retry_cannot_fix() -> None:
    before = answered("free", 504)
    call = client(max_retries=2).chat.completions.create
    fails(openai.InternalServerError, lambda: call(**say("!echo fail=timeout")))
    until(lambda: answered("free", 504) == before + 1)


def case_raises_api_error_in_the_middle_of_a_stream() -> None:
    script = "!echo fail=upstream_error after=2\none two three four"
    stream = client().chat.completions.create(**say(script), stream=True)
    chunks: list[Any] = []
    error = fails(openai.APIError, lambda: chunks.extend(iter_into(stream, chunks)))
    assert text_of(chunks) == "one two" and error.code == "upstream_error"


def iter_into(stream: Any, chunks: list[Any]) -> list[Any]:
    for chunk in stream:
        chunks.append(chunk)
    return []


def case_cancels_the_work_when_it_closes_a_stream() -> None:
    with client().chat.completions.create(**say(ENDLESS), stream=True) as stream:
        next(iter(stream))
        until_running("free", 1)
    until_running("free", 0)


def case_cancels_the_work_when_its_own_timeout_expires() -> None:
    call = client(timeout=0.2).chat.completions.create
    fails(openai.APITimeoutError, lambda: call(**say(ENDLESS)))
    until_running("free", 0)


def case_completes_prompts_whole_and_streamed() -> None:
    asked: Any = {"model": "echo-1", "prompt": [UNICODE, "two"], "max_tokens": 100, "logprobs": 1}
    whole = client().completions.create(**asked)
    assert [choice.text for choice in whole.choices] == [UNICODE, "two"], whole
    assert whole.usage and whole.usage.completion_tokens > 0
    listed = whole.choices[1].logprobs
    assert listed and listed.tokens == ["two"] and listed.text_offset == [0], listed
    texts = ["", ""]
    for chunk in client().completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [UNICODE, "two"], texts


def case_refuses_a_prompt_that_a_model_cannot_read() -> None:
    error = fails(openai.BadRequestError, lambda: client().completions.create(model="echo-1", prompt=[1, 2]))
    assert error.param == "prompt" and error.code == "unsupported_value", error


async def case_cancels_the_work_when_a_task_is_cancelled() -> None:
    async with AsyncOpenAI(api_key=GIVEN["key"], base_url=GIVEN["free"] + "/v1") as asynchronous:
        task = asyncio.create_task(asynchronous.chat.completions.create(**say(ENDLESS)))
        await asyncio.to_thread(until_running, "free", 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        await asyncio.to_thread(until_running, "free", 0)


def case_lists_models_and_retrieves_one_whose_id_has_a_slash() -> None:
    assert [model.id for model in client().models.list()] == ["echo-1", SLASHED]
    assert client().models.retrieve(SLASHED).id == SLASHED
    fails(openai.NotFoundError, lambda: client().models.retrieve("no/such"))


async def case_makes_concurrent_calls_with_matching_responses() -> None:
    async with AsyncOpenAI(api_key=GIVEN["key"], base_url=GIVEN["free"] + "/v1") as asynchronous:

        async def ask(word: str, stream: bool) -> str:
            answer = await asynchronous.chat.completions.create(**say(word), stream=stream)
            return text_of([chunk async for chunk in answer]) if stream else answer.choices[0].message.content

        words = [f"word {i}" for i in range(16)]
        assert await asyncio.gather(*(ask(word, i % 2 == 0) for i, word in enumerate(words))) == words


if __name__ == "__main__":
    main(globals())
