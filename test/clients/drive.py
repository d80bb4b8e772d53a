"""Runs the three calls of a client: `python drive.py CASE QUESTIONS`. The file CASE imports the module `page`, the snippet of
docs/get-started/clients.md, which is beside it, and defines `whole`, `streamed` and `tools`. Each takes a prompt; `streamed` gives the pieces of
the answer, the others its text. The last line printed is JSON: by call the answer, or the error.
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
