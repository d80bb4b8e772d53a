"""Runner of the cases of the Python SDKs, and functions that observe the service. All scripts of the SDKs use this module.

A script defines functions named ``case_…`` and calls :func:`main`. The script is started with one argument, a JSON object::

    {"key": "sk-…", "free": "http://…", "full": "http://…", "limited": "http://…"}

The service at ``free`` has no limits, the one at ``full`` runs a few concurrent calls, and the one at ``limited`` allows
one call per minute. The script prints one JSON object: for each case, null or the reason of the failure.
"""

import asyncio
import faulthandler
import inspect
import json
import sys
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

SLASHED = "org/echo-2"
UNICODE = 'naïve "日本語" 👩‍👩‍👧 ß\n\tend'
# Prompt of a call that streams for a quarter of an hour. If the call ends earlier, then it was cancelled.
ENDLESS = "!echo tokens=1000 delay_ms=1000"
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER_ARGUMENTS = {"city": "city", "days": 1}
# Maximum concurrent calls of the service `full` (test/support/sdk.ts).
PLACES = 6
WAIT_SECONDS = 30
HANG_SECONDS = 200

GIVEN: dict[str, str] = json.loads(sys.argv[1])


def main(module: dict[str, Any]) -> None:
    """Runs every ``case_…`` of a module and prints the report. Cases on the full service run concurrently with the other cases."""
    # After this time, the script is assumed to hang. The stacks of all threads are then printed to stderr, and the script exits.
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    cases = {name: case for name, case in module.items() if name.startswith("case_")}
    full = [name for name, case in cases.items() if hasattr(case, "is_on_full")]
    with ThreadPoolExecutor(1) as apart:
        report = apart.submit(lambda: {name: run(cases[name]) for name in full})
        print(json.dumps({name: run(cases[name]) for name in cases if name not in full} | report.result()))


def on_full(case: Any) -> Any:
    """Marks a case that uses the full service, on which one case runs at a time. These cases mostly wait, so other cases run meanwhile."""
    case.is_on_full = True
    return case


def run(case: Callable[[], Any]) -> str | None:
    try:
        result = case()
        if inspect.iscoroutine(result):
            asyncio.run(result)
    except Exception:
        return traceback.format_exc()
    return None


def fails(kind: type[BaseException], call: Callable[[], Any]) -> Any:
    """Makes a call that must fail, and returns its exception."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def get(service: str, path: str) -> str:
    request = urllib.request.Request(GIVEN[service] + path, headers={"Authorization": f"Bearer {GIVEN['key']}"})
    with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as response:
        return response.read().decode()


def use_up_limited() -> None:
    """Uses up the only request of the minute, so that the next call is refused."""
    body = json.dumps({"model": "echo-1", "messages": [{"role": "user", "content": "x"}]}).encode()
    headers = {"Authorization": f"Bearer {GIVEN['key']}", "Content-Type": "application/json"}
    request = urllib.request.Request(GIVEN["limited"] + "/v1/chat/completions", body, headers)
    with suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=WAIT_SECONDS) as response:
        response.read()


def metric(service: str, name: str, label: str = "") -> float:
    """The sum of the samples of a metric with a label."""
    lines = get(service, "/metrics").splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{") and label in line)


def answered(service: str, status: int) -> float:
    """Number of requests with a status so far."""
    return metric(service, "sluice_http_requests_total", f'status="{status}"')


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("the condition never held")
        time.sleep(0.01)


def until_running(service: str, count: int) -> None:
    """Waits until a number of attempts is running; 0 shows that the work of a disconnected client was stopped."""
    until(lambda: metric(service, "sluice_pool_running") == count)


@contextmanager
def occupied(open_stream: Callable[[], Any]) -> Iterator[Callable[[], None]]:
    """Fills every slot of the full service. Yields a function that frees the slots."""
    streams = [open_stream() for _ in range(PLACES)]
    until_running("full", PLACES)

    def free() -> None:
        while streams:
            streams.pop().close()
        until_running("full", 0)

    try:
        yield free
    finally:
        free()


def call_while_full(open_stream: Callable[[], Any], status: int, call: Callable[[], Any]) -> Any:
    """Makes a call while the service is full, frees slots after the first refusal, and returns the result of the call."""
    before = answered("full", status)
    with occupied(open_stream) as free, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(call)
        until(lambda: answered("full", status) > before)
        free()
        return answer.result(timeout=2 * WAIT_SECONDS)
