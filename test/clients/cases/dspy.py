import dspy
from dspy.streaming import streamify
from page import model


class Plain(dspy.ChatAdapter):
    """The prompt is the question, and the whole text is the answer, because echo-1 does not fill in DSPy's own form."""

    def format(self, signature, demos, inputs):
        return [{"role": "user", "content": inputs["question"]}]

    def parse(self, signature, completion):
        return {"answer": completion}


def whole(prompt):
    with dspy.context(adapter=Plain()):
        return dspy.Predict("question -> answer")(question=prompt).answer


async def streamed(prompt):
    with dspy.context(adapter=Plain()):
        chunks = [chunk async for chunk in streamify(dspy.Predict("question -> answer"))(question=prompt)]
    return [chunk.choices[0].delta.content or "" for chunk in chunks if hasattr(chunk, "choices")]


def tools(prompt):
    tool = dspy.Tool(lambda city: f"sunny in {city}", name="get_weather", args={"city": {"type": "string"}})
    [call] = model(prompt, tools=[tool.format_as_litellm_function_call()])[0]["tool_calls"]
    return tool(city="city") if call.function.name == "get_weather" else call
