"""
Runs the caller's program inside the sandbox; every adapter uses this code.

This code is no barrier: after the program has started, it controls everything in this process. Only files, pipes and
clocks of the standard library are used, so that the code also runs under WebAssembly.
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
# Libraries that every program can import, and whose versions are reported.
LIBRARIES = ("numpy", "pandas", "scipy", "matplotlib", "seaborn")
# Modules that are imported before the first program, in this order. Modules of STANDARD are fast and are imported together. Modules of
# STEPS take long and are imported one by one, so that a container can accept a job between two of them.
STANDARD = (
    "collections", "csv", "dataclasses", "datetime", "decimal", "fractions", "functools", "itertools", "math", "queue",
    "re", "statistics", "string", "typing",
)  # fmt: skip
STEPS = ("asyncio", "numpy", "matplotlib.pyplot", "pandas", "scipy.optimize", "scipy.stats", "seaborn")
# Memory that is reserved while the program runs and freed to report a MemoryError, because a traceback needs memory too.
RESERVE_BYTES = 4 << 20
PYTHON_VERSION = {"python": ".".join(map(str, sys.version_info[:3]))}
OURS = os.path.dirname(__file__) + "/"
# Path prefixes of the standard library and of installed libraries, read before the program can extend sys.path.
LIBRARY_PLACES = ("<frozen ", *(f"{place}/" for place in sys.path if place))
# Extensions of the sources of compiled libraries. The frames of such libraries have file names without a directory, so the extension
# identifies them.
COMPILED = (".pyx", ".pxi", ".pxd")
# Hint about the options of this interpreter, which newer versions of Python append to the error of a missing module.
NO_SITE_HINT = re.compile(r"\. Site initialization is disabled, [^\n]*", re.ASCII)
# Python 3.10 has no exception groups, so the value is then an empty tuple.
GROUP = getattr(builtins, "BaseExceptionGroup", ())
IMPORT = builtins.__import__
# The program may have replaced stdout and stderr, so the originals are flushed as well.
OUTPUTS = ("stdout", "stderr", "__stdout__", "__stderr__")
TOO_DEEP = "line 1: the code nests too deeply to be checked"
UNCHECKED = "line 1: the code cannot be checked"

Emit = Callable[[bytes, bytes], None]

_reserve: bytes | None = None


def warm() -> dict[str, str]:
    """
    Imports all libraries in advance, so that no run waits for them. Call this once, before any program.

    Returns the version of each library by its import name, and the version of `python`.
    """
    prepare()
    for name in STEPS:
        load(name)
    return {**PYTHON_VERSION, **{name: str(sys.modules[name].__version__) for name in LIBRARIES}}


def prepare() -> None:
    """Prepares this interpreter for any program. Libraries that are not loaded yet are adapted when they are imported."""
    fonts.seed_cache()
    plots.capture_when_imported()
    thread_pool.make_it_work()
    for name in STANDARD:
        importlib.import_module(name)
    # Adds exit(), quit() and help(), which are missing if the interpreter was started without site packages.
    site.setquit()
    site.sethelper()
    gc.freeze()


def load(name: str) -> None:
    """Imports one of STEPS. Call this at most once for each."""
    importlib.import_module(name)
    if name == plots.PYPLOT:
        plots.draw_one()
    # Excludes all existing objects from garbage collection. In a fork, a collection would visit these objects and thereby copy their pages.
    gc.freeze()


def execute(
    code: str, *, scan: bool, files: dict[str, str], emit: Emit, lock_down: Callable[[], None]
) -> int:
    """
    Checks a program and runs it as `__main__` on descriptors 0, 1 and 2. Returns its exit status, 0..255.

    `emit(b"V", json)` sends the verdict of the scan, `{"violations": [...]}`. If there is a violation, nothing runs.
    `emit(b"P", png)` sends each figure that the program shows. `files` are written to the working directory, each by
    its name and with its content in base64. `lock_down` is called after the verdict and before the program. If `scan`
    is false, then neither the program nor its imports are checked.
    """
    _open_streams()
    # Some editors write a byte order mark at the start of a file. Python ignores it in files, but not in strings.
    code = code.removeprefix("\ufeff")
    # The text is split at Python's own line ends. `str.splitlines` would also split at form feeds and U+2028.
    linecache.cache[FILE] = (len(code), None, io.StringIO(code, newline=None).readlines(), FILE)
    failure, tree = None, None
    try:
        tree = ast.parse(code, FILE)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        failure = error
    # The scanned tree is also the compiled tree, so that no difference between two parsers can hide code from the scan.
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
        # Printing an exception may also run code of the program, and that code may fail.
        status = 1
    return _finish(status)


def _put(files: dict[str, str]) -> None:
    while files:
        name, content = files.popitem()
        with open(name, "wb") as file:
            file.write(base64.b64decode(content))


class _AtOnce(io.BufferedWriter):
    """Flushes each write, so that no output is lost if the program is killed, not even an incomplete line."""

    def write(self, data) -> int:
        count = super().write(data)
        self.flush()
        return count


def _open_streams() -> None:
    """Opens the standard streams unbuffered, like `python -u`, and always in UTF-8."""
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
        # If the scan itself fails, then the program cannot be checked and is rejected.
        return [UNCHECKED]


def _run(tree: ast.AST, *, is_guarded: bool) -> int:
    try:
        program = compile(tree, FILE, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        if isinstance(error, SyntaxError):
            # The error of a tree lacks the faulty line, because a tree has no source text.
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
    Replaces `__import__`: rejects the modules on the scan's list if the program computed their names at run time.

    Imports by libraries are not restricted. The check only provides a clear error message; it is no security barrier.
    """
    caller = sys._getframe(1).f_globals if globals is None else globals
    if level == 0 and caller.get("__name__", "__main__") == "__main__" and policy.is_denied_import(name, fromlist or ()):
        # PyImport_Import, which C code such as numpy.fromfile calls, passes a list here. The result is ignored, because the module is taken from
        # sys.modules.
        if name == "os" and fromlist == []:
            return None
        raise ImportError(f"import of '{name}' is not allowed")
    return IMPORT(name, globals, locals, fromlist, level)


def _forget_random_state() -> None:
    """Seeds random numbers again. Otherwise all runs forked from one interpreter would draw the same numbers."""
    random.seed()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed(None)


def _exit_status(code: object) -> int:
    """Converts the code of `SystemExit` into an exit status, as Python does."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _report(error: BaseException, trace: types.TracebackType | None) -> int:
    """Prints an exception as Python does, but without our own frames: the traceback begins in the program."""
    global _reserve
    _reserve = None
    BaseException.with_traceback(error, trace)
    _clean(error)
    hook = sys.excepthook
    try:
        # The built-in hook would read the source lines from the file, which does not exist. `_print` takes the lines from `linecache`.
        if hook is sys.__excepthook__:
            _print(error)
        else:
            hook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return _exit_status(leaving.code)
    except BaseException as broken:
        # The program's own hook failed. The printed error has the original exception as its context.
        _clean(broken)
        _print(broken)
    return 1


def _print(error: BaseException) -> None:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    sys.stderr.write(NO_SITE_HINT.sub("", text))


def _clean(error: BaseException) -> None:
    """Removes our own frames from an exception and its causes, and drops causes that happened only inside libraries."""
    seen, pending = {}, [error]
    while pending:
        error = pending.pop()
        if error is None or id(error) in seen:
            continue
        seen[id(error)] = error
        # The methods are called on BaseException, because a class of the program may override these names.
        BaseException.with_traceback(error, _without_ours(error.__traceback__))
        pending += [error.__cause__, error.__context__, *(error.exceptions if isinstance(error, GROUP) else ())]
    for each in seen.values():
        if _is_inside_library(BaseException.__cause__.__get__(each) or BaseException.__context__.__get__(each)):
            # Setting `__cause__` also hides the context in the printed traceback.
            BaseException.__cause__.__set__(each, None)


def _is_inside_library(error: BaseException | None) -> bool:
    """Whether libraries raised and caught an exception and all its causes, such as the `KeyError` of a pandas index."""
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
    """Does the work of an interpreter exit: joins threads, runs `atexit` handlers, flushes the streams."""
    # Plots precede the `atexit` handlers, because a handler of pyplot closes all figures.
    for step in (threading._shutdown, plots.finish, atexit._run_exitfuncs, *(functools.partial(_flush, name) for name in OUTPUTS)):
        try:
            step()
        except BaseException:
            # Each step can run code of the program. If a step fails, then the other steps still run.
            status = status or 1
    return status


def _flush(name: str) -> None:
    stream = getattr(sys, name, None)
    # The program may have closed the stream, or replaced it with an object that lacks `closed`.
    if not getattr(stream, "closed", True):
        stream.flush()
