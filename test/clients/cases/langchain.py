from langchain.agents import create_agent
from langchain.tools import tool
from page import model


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def whole(prompt):
    return model.invoke(prompt).text


def streamed(prompt):
    return [chunk.text for chunk in model.stream(prompt) if chunk.text]


def tools(prompt):
    agent = create_agent(model, tools=[get_weather])
    return agent.invoke({"messages": [{"role": "user", "content": prompt}]})["messages"][-1].text
