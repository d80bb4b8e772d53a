"""
What a program may not name: tables only. `scan.py` reads them, and so does the import that guards a running program.

The list is short on purpose: modules that start processes, open connections, call native code or load other modules,
and the attributes that lead to them. A missing module, a file that does not exist or a request without a network is an
error of the program that it can handle, not a violation: the sandbox around this process is the wall.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

# Top-level modules that are denied, by what they give access to.
DENIED_MODULES = frozenset(
    # The operating system and its processes.
    "os posix nt posixpath ntpath subprocess multiprocessing signal pty tty termios fcntl resource mmap pwd grp spwd syslog crypt "
    # The network.
    "socket ssl socketserver select selectors ftplib smtplib smtpd poplib imaplib nntplib telnetlib xmlrpc wsgiref asyncore "
    "asynchat webbrowser antigravity "
    # Native code.
    "ctypes cffi "
    # Other ways to load or run modules, and the interpreter's own start.
    "imp runpy pkgutil zipimport site sysconfig ensurepip venv distutils marshal code codeop".split()
)
# Modules that are denied where another module brings them along (`random._os`, `traceback.sys`), except names that
# functions have, too (`numpy.select`).
HIDDEN_MODULES = (DENIED_MODULES | {"builtins", "importlib", "sys"}) - {"select"}
# Other modules of the standard library whose names begin with an underscore are the inside of the denied ones.
PRIVATE_ALLOWED = frozenset(("__future__", "__main__", "_codecs", "_thread"))
# Members of a denied module that are allowed.
ALLOWED_MEMBERS = ("multiprocessing.cpu_count", "multiprocessing.dummy", "multiprocessing.pool.ThreadPool")
# Members that bear the name of a denied module and are none.
HOMONYMS = frozenset(("scipy.signal",))

# Parts of an allowed module, with all that is below them.
DENIED_MEMBERS = frozenset(
    """
    asyncio.create_subprocess_exec asyncio.create_subprocess_shell asyncio.open_connection asyncio.start_server
    asyncio.open_unix_connection asyncio.start_unix_server asyncio.subprocess builtins.__import__
    concurrent.futures.ProcessPoolExecutor concurrent.futures.process gc.get_objects gc.get_referents gc.get_referrers
    http.client http.server importlib.abc importlib.machinery importlib.reload importlib.__import__
    importlib.util.module_from_spec importlib.util.spec_from_file_location importlib.util.spec_from_loader
    importlib.util.LazyLoader logging.config.listen logging.handlers.DatagramHandler logging.handlers.HTTPHandler
    logging.handlers.SMTPHandler logging.handlers.SocketHandler logging.handlers.SysLogHandler matplotlib.testing
    pandas._testing pandas.io.clipboard sys._current_exceptions sys._current_frames sys.addaudithook
    sys.breakpointhook sys.call_tracing sys.meta_path sys.modules sys.path_hooks sys.path_importer_cache sys.remote_exec
    sys.unraisablehook types.CodeType urllib.request
    """.split()
)
# Functions that are denied wherever in a module they are found: pandas and numpy name them at several paths.
DENIED_FUNCTIONS = frozenset("DataSource ctypeslib f2py load_library open_code read_clipboard".split())
# Functions whose first argument is the name of a module to load or to look for.
MODULE_LOADERS = frozenset(("__import__", "importlib.import_module", "importlib.util.find_spec"))

# Attributes of any object that lead to the namespaces of other modules, to code or to native memory.
DENIED_ATTRIBUTES = frozenset(
    """
    __builtins__ __code__ __globals__ __import__ __loader__ __subclasses__ ag_code ag_frame as_ctypes co_code co_consts cr_code
    cr_frame ctypeslib f_builtins f_globals func_code func_globals gi_code gi_frame subprocess_exec
    subprocess_shell to_clipboard
    """.split()
)
# The same for plain names.
DENIED_NAMES = frozenset("__builtins__ __build_class__ __loader__ __spec__".split())

# Functions whose first or second argument, or one of PATH_KEYWORDS, is a path; on any object.
PATH_METHODS = frozenset(
    """
    fromfile fromregex genfromtxt imread imsave loadmat loadtxt memmap open_memmap read_csv read_excel read_feather
    read_fwf read_hdf read_html read_json read_orc read_parquet read_pickle read_sas read_spss read_stata read_table
    read_xml readsav savefig savemat savetxt savez savez_compressed to_csv to_excel to_feather to_hdf to_html to_json
    to_latex to_markdown to_parquet to_pickle to_stata to_xml tofile
    """.split()
)
# The same, but only as a member of a module: objects of the caller have such methods too.
PATH_FUNCTIONS = PATH_METHODS | frozenset(
    """
    BZ2File ExcelFile ExcelWriter FileHandler FileIO GzipFile HDFStore LZMAFile ZipFile basicConfig connect iterparse load
    open parse save
    """.split()
)
PATH_KEYWORDS = frozenset("excel_writer file filename filepath_or_buffer fname io path path_or_buf".split())
# Directories of an operating system: a path into one, written into the source, is meant for the machine.
SYSTEM_DIRECTORIES = frozenset("bin boot dev etc lib lib64 opt proc root run sbin sys var".split())
SYSTEM_FILES_ALLOWED = frozenset(f"/dev/{name}" for name in ("null", "random", "stderr", "stdin", "stdout", "urandom"))


def is_denied(path: str) -> bool:
    """Whether a dotted path, spelled from its top-level module, is or lies in something that is not allowed."""
    parts = path.split(".")
    if _leads_to_allowed_member(path):
        return False
    if _is_denied_module(parts[0]):
        return True
    for length in range(2, len(parts) + 1):
        part, prefix = parts[length - 1], ".".join(parts[:length])
        if prefix in DENIED_MEMBERS or part in DENIED_FUNCTIONS:
            return True
        if part.lstrip("_") in HIDDEN_MODULES and prefix not in HOMONYMS:
            return True
    return False


def is_denied_import(module: str, names: Sequence[str]) -> bool:
    """Whether `import module`, or `from module import names`, is refused."""
    return is_denied(module) and (not names or any(is_denied(f"{module}.{name}") for name in names))


def _is_denied_module(name: str) -> bool:
    is_private = name.startswith("_") and name in sys.stdlib_module_names and name not in PRIVATE_ALLOWED
    return is_private or name in DENIED_MODULES


def _leads_to_allowed_member(path: str) -> bool:
    """`multiprocessing.dummy` and all below it; `import multiprocessing.dummy` binds `multiprocessing` itself."""
    return any(path == member or path.startswith(f"{member}.") for member in ALLOWED_MEMBERS)
