from agents import function_tool
from page import Agent, Runner


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


async def whole(prompt):
    return (await Runner.run(Agent(name="a", model="echo-1"), prompt)).final_output


async def streamed(prompt):
    stream = Runner.run_streamed(Agent(name="a", model="echo-1"), prompt)
    return [
        event.data.delta
        async for event in stream.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]


async def tools(prompt):
    return (await Runner.run(Agent(name="a", model="echo-1", tools=[get_weather]), prompt)).final_output
