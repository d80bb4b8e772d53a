"""Runs the openai package, of any major version from 1 on, against deep research over the documents of the project."""

import functools
import time
from typing import Any

from openai import OpenAI, Stream
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from cases import GIVEN, main

QUESTION = "How are webhooks signed, and how often are they tried again?"
BODY = {"model": "deep-research", "messages": [{"role": "user", "content": QUESTION}]}


@functools.cache
def client() -> OpenAI:
    return OpenAI(api_key=GIVEN["key"], base_url=GIVEN["free"] + "/v1", max_retries=0)


def case_gets_the_whole_report_with_its_citations() -> None:
    answer = client().post("/deep-research", body=BODY, cast_to=ChatCompletion)
    message = answer.choices[0].message
    assert "sign" in (message.content or ""), message.content
    citation = (message.annotations or [])[0].url_citation
    assert citation.url == "docs/guides/webhooks.md", citation
    marker = (message.content or "")[citation.start_index : citation.end_index]
    assert marker == "[1]", marker


def case_streams_the_report() -> None:
    options: Any = {"cast_to": ChatCompletion, "stream": True, "stream_cls": Stream[ChatCompletionChunk]}
    chunks = list(client().post("/deep-research", body={**BODY, "stream": True}, **options))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert "sign" in text, text
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "stop", chunks[-1]


def case_submits_a_background_research_and_reads_it_later() -> None:
    job: Any = client().post("/deep-research", body={**BODY, "background": True}, cast_to=object)
    for _ in range(100):
        job = client().get("/jobs/" + job["id"] + "?wait=30", cast_to=object)
        if job["status"] == "completed":
            break
        time.sleep(0.1)
    assert job["result"]["choices"][0]["message"]["annotations"], job


if __name__ == "__main__":
    main(globals())
