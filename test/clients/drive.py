"""Runs the three calls of a client: `python drive.py CASE QUESTIONS`.

The file CASE defines the functions `whole`, `streamed` and `tools`, each with a prompt as its argument. `streamed` returns the pieces of the
answer, and the other functions return its text. CASE imports the module `page` from its directory: the snippet of docs/get-started/clients.md. The
last line of the output is a JSON object with the answer or the error of each call.
"""

import asyncio
import contextlib
import importlib.util
import inspect
import io
import json
import sys
import traceback
from pathlib import Path


# One event loop for all calls, because a client reuses its connections.
LOOP = asyncio.new_event_loop()
asyncio.set_event_loop(LOOP)


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def answer(function, *given):
    try:
        value = function(*given)
        if inspect.iscoroutine(value):
            value = LOOP.run_until_complete(value)
        return {"answer": list(value) if inspect.isgenerator(value) else value}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    case = Path(sys.argv[1])
    questions = json.loads(sys.argv[2])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        page = answer(load, case.with_name("page.py"))
    report = {"page": {"answer": printed.getvalue()} if "answer" in page else page}
    with contextlib.redirect_stdout(sys.stderr):
        module = load(case) if "answer" in report["page"] else None
        for name, prompt in questions.items():
            report[name] = answer(getattr(module, name), prompt) if module else {"error": "the snippet failed"}
    print("\n" + json.dumps(report))


main()
