from page import client

TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def whole(prompt):
    return client.chat.completions.create(
        model="echo-1", messages=[{"role": "user", "content": prompt}]
    ).choices[0].message.content


def streamed(prompt):
    with client.responses.stream(model="echo-1", input=prompt) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                yield event.delta


def tools(prompt):
    response = client.responses.create(model="echo-1", input=prompt, tools=[TOOL])
    [call] = [item for item in response.output if item.type == "function_call"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny in city"}
    return client.responses.create(
        model="echo-1", input=[output], previous_response_id=response.id, tools=[TOOL]
    ).output_text
