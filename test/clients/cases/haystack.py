from typing import Annotated

from haystack.components.agents import Agent
from haystack.tools import tool
from page import ChatMessage, generator


@tool
def get_weather(city: Annotated[str, "the city"]) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def whole(prompt):
    return generator.run([ChatMessage.from_user(prompt)])["replies"][0].text


def streamed(prompt):
    pieces = []
    generator.run([ChatMessage.from_user(prompt)], streaming_callback=lambda chunk: pieces.append(chunk.content))
    return pieces


def tools(prompt):
    agent = Agent(chat_generator=generator, tools=[get_weather])
    return agent.run([ChatMessage.from_user(prompt)])["messages"][-1].text
