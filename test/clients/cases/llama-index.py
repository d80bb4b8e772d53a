from llama_index.core.agent.workflow import FunctionAgent
from page import model


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def whole(prompt):
    return model.complete(prompt).text


def streamed(prompt):
    for chunk in model.stream_complete(prompt):
        yield chunk.delta or ""


async def tools(prompt):
    return str(await FunctionAgent(tools=[get_weather], llm=model).run(prompt))
