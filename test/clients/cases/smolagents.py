from page import model
from smolagents import tool


@tool
def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: The city.
    """
    return f"sunny in {city}"


def whole(prompt):
    return model.generate([{"role": "user", "content": prompt}]).content


def streamed(prompt):
    for delta in model.generate_stream([{"role": "user", "content": prompt}]):
        yield delta.content or ""


def tools(prompt):
    messages = [{"role": "user", "content": prompt}]
    answer = model.generate(messages, tools_to_call_from=[get_weather])
    [call] = answer.tool_calls
    return get_weather(**model.parse_tool_calls(answer).tool_calls[0].function.arguments)
