import litellm
from page import sluice

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def whole(prompt):
    return litellm.responses(input=prompt, **sluice).output[0].content[0].text


def streamed(prompt):
    for chunk in litellm.completion(messages=[{"role": "user", "content": prompt}], stream=True, **sluice):
        yield chunk.choices[0].delta.content or ""


def tools(prompt):
    messages = [{"role": "user", "content": prompt}]
    message = litellm.completion(messages=messages, tools=[TOOL], **sluice).choices[0].message
    [call] = message.tool_calls
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "sunny in city"}]
    return litellm.completion(messages=messages, tools=[TOOL], **sluice).choices[0].message.content
