"""Each response of this client is an object. The prompt makes echo-1 call the tool whose arguments are this object."""

import json

import instructor
from page import client
from pydantic import BaseModel


class Weather(BaseModel):
    city: str


def ask(city, response_model, **options):
    script = f"!echo delay_ms=20 call={response_model.__name__} args={json.dumps(json.dumps({'city': city}))}"
    return client.create(model="echo-1", messages=[{"role": "user", "content": script}], response_model=response_model, **options)


def whole(prompt):
    return ask(prompt, Weather).city


def streamed(prompt):
    """Streams an object that grows, and yields the new characters of its field `city`."""
    said = ""
    for part in ask(prompt.split("\n")[-1], instructor.Partial[Weather], stream=True):
        if part.city:
            yield part.city[len(said) :]
            said = part.city


def tools(prompt):
    weather = client.create(model="echo-1", messages=[{"role": "user", "content": prompt}], response_model=Weather)
    return f"sunny in {weather.city}"
