from page import Agent, model


def whole(prompt):
    return Agent(model).run_sync(prompt).output


async def streamed(prompt):
    async with Agent(model).run_stream(prompt) as stream:
        return [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]


def tools(prompt):
    agent = Agent(model)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    return agent.run_sync(prompt).output
