"""
Runs the caller's program: inside every sandbox, whatever its walls are made of.

Nothing here keeps anybody in, and nothing asks for an operating system: files, pipes and clocks of the standard
library are all it takes, so that it runs the same under WebAssembly. What is hostile is the program, and after it has
started everything in this process is its own.
"""

from __future__ import annotations

import ast
import atexit
import base64
import builtins
import functools
import gc
import importlib
import io
import json
import linecache
import os
import random
import re
import site
import sys
import threading
import traceback
import types
from collections.abc import Callable

import fonts
import plots
import thread_pool
from scan import scan as policy

FILE = "main.py"
# What a program may expect to find, and to be told the version of.
LIBRARIES = ("numpy", "pandas", "scipy", "matplotlib", "seaborn")
# Loaded before a program asks, in this order: parts of the standard library, at no price, then what takes its time.
STANDARD = (
    "collections", "csv", "dataclasses", "datetime", "decimal", "fractions", "functools", "itertools", "math", "queue",
    "re", "statistics", "string", "typing",
)  # fmt: skip
STEPS = ("asyncio", "numpy", "matplotlib.pyplot", "pandas", "scipy.optimize", "scipy.stats", "seaborn")
# Held while the program runs and let go to report a MemoryError: printing a traceback takes memory too.
RESERVE_BYTES = 4 << 20
PYTHON_VERSION = {"python": ".".join(map(str, sys.version_info[:3]))}
OURS = os.path.dirname(__file__) + "/"
# Where the standard library and the installed ones are, before a program adds directories of its own.
LIBRARY_PLACES = ("<frozen ", *(f"{place}/" for place in sys.path if place))
# Sources of compiled libraries, whose frames have no directory.
COMPILED = (".pyx", ".pxi", ".pxd")
# Newer versions of Python add to the error of a missing module how this interpreter was started.
NO_SITE_HINT = re.compile(r"\. Site initialization is disabled, [^\n]*", re.ASCII)
# Python 3.10 has none.
GROUP = getattr(builtins, "BaseExceptionGroup", ())
IMPORT = builtins.__import__
# The program may have put something else in the place of the first two.
OUTPUTS = ("stdout", "stderr", "__stdout__", "__stderr__")
TOO_DEEP = "line 1: the code nests too deeply to be checked"
UNCHECKED = "line 1: the code cannot be checked"

Emit = Callable[[bytes, bytes], None]

_reserve: bytes | None = None


def warm() -> dict[str, str]:
    """
    Loads everything, so that no run pays for it. Call it once, before any program.

    Gives the version of each library by the name it is imported by, and of `python`.
    """
    prepare()
    for name in STEPS:
        load(name)
    return {**PYTHON_VERSION, **{name: str(sys.modules[name].__version__) for name in LIBRARIES}}


def prepare() -> None:
    """Makes this interpreter able to run any program: what a program imports from here on works as if it was loaded."""
    fonts.seed_cache()
    plots.capture_when_imported()
    thread_pool.make_it_work()
    for name in STANDARD:
        importlib.import_module(name)
    # exit(), quit() and help(), which an interpreter that is started without its site packages does not have.
    site.setquit()
    site.sethelper()
    gc.freeze()


def load(name: str) -> None:
    """Takes one of STEPS, each at most once."""
    importlib.import_module(name)
    if name == plots.PYPLOT:
        plots.draw_one()
    # What is here now is never garbage: a collection would only look at it again, and in a fork copy its pages.
    gc.freeze()


def execute(
    code: str, *, scan: bool, files: dict[str, str], emit: Emit, lock_down: Callable[[], None]
) -> int:
    """
    Checks a program and runs it as `__main__` on descriptors 0, 1 and 2; gives its exit status, 0..255.

    `emit(b"V", json)` tells the verdict, `{"violations": [...]}`, before anything runs; with a violation nothing does.
    `files` are put into the working directory, by their names, from base64. `emit(b"P", png)` gives each figure that the program shows. `lock_down` is called between verdict and program. With
    `scan` off the program is not looked at, and its imports are not either.
    """
    _open_streams()
    # Editors put one at the start of a file; Python reads over it there.
    code = code.removeprefix("\ufeff")
    # Lines as Python counts them: form feeds and U+2028 end none.
    linecache.cache[FILE] = (len(code), None, io.StringIO(code, newline=None).readlines(), FILE)
    failure, tree = None, None
    try:
        tree = ast.parse(code, FILE)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        failure = error
    # The tree that is scanned is the one that is compiled: no other parser can read it differently.
    violations = _violations(tree) if scan and tree is not None else []
    emit(b"V", json.dumps({"violations": violations}).encode())
    if violations:
        return 0
    _put(files)
    lock_down()
    plots.send_to(emit)
    try:
        status = _report(failure, None) if tree is None else _run(tree, is_guarded=scan)
    except BaseException:
        # Even printing an exception runs code of the program.
        status = 1
    return _finish(status)


def _put(files: dict[str, str]) -> None:
    while files:
        name, content = files.popitem()
        with open(name, "wb") as file:
            file.write(base64.b64decode(content))


class _AtOnce(io.BufferedWriter):
    """Keeps nothing back: what a program printed before it is ended from outside, half a line too, must have left."""

    def write(self, data) -> int:
        count = super().write(data)
        self.flush()
        return count


def _open_streams() -> None:
    """As `python -u` opens them, but always UTF-8, so that output leaves while the program runs."""
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(open(0, "rb", closefd=False), encoding="utf-8")
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw = _AtOnce(io.FileIO(descriptor, "w", closefd=False))
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _violations(tree: ast.AST) -> list[str]:
    try:
        return policy.scan(tree)
    except RecursionError:
        return [TOO_DEEP]
    except Exception:
        # A flaw of the scan lets nothing through.
        return [UNCHECKED]


def _run(tree: ast.AST, *, is_guarded: bool) -> int:
    try:
        program = compile(tree, FILE, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        if isinstance(error, SyntaxError):
            # A tree does not know its text.
            error.text = linecache.getline(FILE, error.lineno or 1)
        return _report(error, None)
    global _reserve
    _reserve = bytes(RESERVE_BYTES)
    main = _main_module(is_guarded)
    _forget_random_state()
    try:
        exec(program, main.__dict__)
        return 0
    except SystemExit as error:
        return _exit_status(error.code)
    except BaseException as error:
        return _report(error, error.__traceback__)


def _main_module(is_guarded: bool) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__file__ = FILE
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    sys.argv = [FILE]
    if is_guarded:
        builtins.__import__ = _import
    return main


def _import(name, globals=None, locals=None, fromlist=(), level=0):
    """
    The import of a program, which knows the scan's list, for names that a scan cannot see because they are computed.

    Libraries import what they need. The guard gives a clear message and is no wall: the walls are outside this process.
    """
    caller = sys._getframe(1).f_globals if globals is None else globals
    if level == 0 and caller.get("__name__", "__main__") == "__main__" and policy.is_denied_import(name, fromlist or ()):
        # Not a program but C that it called, as numpy.fromfile does: PyImport_Import comes here with a list, and then takes
        # the module from sys.modules, whatever it is given.
        if name == "os" and fromlist == []:
            return None
        raise ImportError(f"import of '{name}' is not allowed")
    return IMPORT(name, globals, locals, fromlist, level)


def _forget_random_state() -> None:
    """Runs that share one warm interpreter would otherwise draw the same numbers."""
    random.seed()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed(None)


def _exit_status(code: object) -> int:
    """Of `SystemExit`, as Python takes it."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _report(error: BaseException, trace: types.TracebackType | None) -> int:
    """Prints an exception as Python does, without our frames, and beginning with a line of the program."""
    global _reserve
    _reserve = None
    BaseException.with_traceback(error, trace)
    _clean(error)
    hook = sys.excepthook
    try:
        # The built-in one looks for the source in a file.
        if hook is sys.__excepthook__:
            _print(error)
        else:
            hook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return _exit_status(leaving.code)
    except BaseException as broken:
        # The hook is the program's. The exception that it was called for is the context of this one, and printed with it.
        _clean(broken)
        _print(broken)
    return 1


def _print(error: BaseException) -> None:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    sys.stderr.write(NO_SITE_HINT.sub("", text))


def _clean(error: BaseException) -> None:
    """Takes our frames out of an exception and its causes, and drops causes that lie inside a library alone."""
    seen, pending = {}, [error]
    while pending:
        error = pending.pop()
        if error is None or id(error) in seen:
            continue
        seen[id(error)] = error
        # A class of the program may have methods and attributes of these names.
        BaseException.with_traceback(error, _without_ours(error.__traceback__))
        pending += [error.__cause__, error.__context__, *(error.exceptions if isinstance(error, GROUP) else ())]
    for each in seen.values():
        if _is_inside_library(BaseException.__cause__.__get__(each) or BaseException.__context__.__get__(each)):
            # Also suppresses the context.
            BaseException.__cause__.__set__(each, None)


def _is_inside_library(error: BaseException | None) -> bool:
    """Whether an exception and all that led to it were raised and caught by libraries: `KeyError` of a pandas index."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        files = [part.tb_frame.f_code.co_filename for part in _parts(error.__traceback__)]
        if not files or not all(file.startswith(LIBRARY_PLACES) or file.endswith(COMPILED) for file in files):
            return False
        error = error.__cause__ or error.__context__
    return bool(seen)


def _without_ours(trace: types.TracebackType | None) -> types.TracebackType | None:
    kept = [part for part in _parts(trace) if not part.tb_frame.f_code.co_filename.startswith(OURS)]
    for part, following in zip(kept, [*kept[1:], None]):
        part.tb_next = following
    return kept[0] if kept else None


def _parts(trace: types.TracebackType | None) -> list[types.TracebackType]:
    parts = []
    while trace is not None:
        parts.append(trace)
        trace = trace.tb_next
    return parts


def _finish(status: int) -> int:
    """What Python does at its end: threads, handlers of `atexit`, buffers. The process may then be ended at once."""
    # Plots before the handlers: pyplot has one that closes all figures.
    for step in (threading._shutdown, plots.finish, atexit._run_exitfuncs, *(functools.partial(_flush, name) for name in OUTPUTS)):
        try:
            step()
        except BaseException:
            # Each of them runs code of the program, and none may keep the others from their part.
            status = status or 1
    return status


def _flush(name: str) -> None:
    stream = getattr(sys, name, None)
    # A program may have closed it, or put something without buffers there.
    if not getattr(stream, "closed", True):
        stream.flush()
