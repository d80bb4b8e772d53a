"""Runs the openai package, of any major version from 1 on, against the embeddings of the service.

The argument also contains the expected values: ``texts``, their ``vectors`` as numbers, and the total number of ``tokens``.
"""

import asyncio
import base64
import functools
import struct
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI

from cases import GIVEN, fails, main

MODEL = "embed-1"
TEXTS: Any = GIVEN["texts"]
VECTORS: Any = GIVEN["vectors"]


@functools.cache
def client() -> OpenAI:
    return OpenAI(api_key=GIVEN["key"], base_url=GIVEN["free"] + "/v1", max_retries=0)


def embed(given: Any, **more: Any) -> Any:
    return client().embeddings.create(model=MODEL, input=given, **more)


def same(found: Any, vectors: Any) -> None:
    """Asserts that two lists of vectors are equal after a conversion to float32."""
    pack = lambda vector: struct.pack(f"<{len(vector)}f", *vector)
    assert [pack(vector) for vector in found] == [pack(vector) for vector in vectors], found


def case_gets_vectors_with_its_default_format_base64() -> None:
    answer = embed(TEXTS)
    same([each.embedding for each in answer.data], VECTORS)
    assert [each.index for each in answer.data] == list(range(len(TEXTS)))
    assert answer.object == "list" and answer.model == MODEL
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == GIVEN["tokens"], answer.usage


def case_gets_vectors_as_numbers() -> None:
    same([each.embedding for each in embed(TEXTS, encoding_format="float").data], VECTORS)


def case_gets_base64_when_requested() -> None:
    raw = base64.b64decode(embed(TEXTS[0], encoding_format="base64").data[0].embedding)
    same([struct.unpack(f"<{len(raw) // 4}f", raw)], VECTORS[:1])


def case_gets_vectors_of_tokens_as_langchain_sends_them() -> None:
    # Token ids in cl100k_base of the texts "one" and "two words".
    same([each.embedding for each in embed([[606], [20375, 4339]]).data], VECTORS[:2])
    same([each.embedding for each in embed([20375, 4339]).data], VECTORS[1:2])


def case_gets_shorter_vectors() -> None:
    assert len(embed(TEXTS[0], dimensions=8).data[0].embedding) == 8


def case_raises_an_error_that_names_the_input() -> None:
    for given, code, param in ((["a", ""], "empty_string", "input[1]"), ([], "empty_array", "input")):
        error = fails(openai.BadRequestError, lambda given=given: embed(given))
        assert error.code == code and error.param == param, error


async def case_makes_concurrent_calls_with_matching_responses() -> None:
    async with AsyncOpenAI(api_key=GIVEN["key"], base_url=GIVEN["free"] + "/v1") as asynchronous:
        calls = (asynchronous.embeddings.create(model=MODEL, input=TEXTS[i % 2]) for i in range(32))
        answers = await asyncio.gather(*calls)
        same([answer.data[0].embedding for answer in answers], [VECTORS[i % 2] for i in range(32)])


if __name__ == "__main__":
    main(globals())
