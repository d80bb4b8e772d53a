whole() { llm -m echo --no-stream "$1"; }
streamed() { llm -m echo "$1"; }
tools() {
  llm -m echo --functions 'def get_weather(city: str) -> str:
    "The weather of a city."
    return f"sunny in {city}"' "$1"
}
