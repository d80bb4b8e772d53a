from page import client

TOOL = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def whole(prompt):
    return client.messages.create(
        model="echo-1", max_tokens=100, messages=[{"role": "user", "content": prompt}]
    ).content[0].text


def streamed(prompt):
    with client.messages.stream(
        model="echo-1", max_tokens=100, messages=[{"role": "user", "content": prompt}]
    ) as stream:
        yield from stream.text_stream


def tools(prompt):
    messages = [{"role": "user", "content": prompt}]
    answer = client.messages.create(model="echo-1", max_tokens=100, messages=messages, tools=[TOOL])
    [call] = [block for block in answer.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": f"sunny in {call.input['city']}"}
    messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    return client.messages.create(model="echo-1", max_tokens=100, messages=messages, tools=[TOOL]).content[0].text
