"""
Tables of names that a program may not use. The scan reads them before the run, and the replaced `__import__`
(execution.py) reads them during it.

The tables are short on purpose. They contain modules that start processes, open connections, call native code or load
other modules, and the attributes that lead to such modules. A missing module, file or network connection is no
violation: the program can handle the error. Only the sandbox around the process is a security barrier.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

# Denied top-level modules, grouped by the resource that they give access to.
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
# Modules that are also denied as an attribute of another module, such as `random._os` and `traceback.sys`. `select` is
# excluded, because it is also the name of functions (`numpy.select`).
HIDDEN_MODULES = (DENIED_MODULES | {"builtins", "importlib", "sys"}) - {"select"}
# Allowed modules of the standard library whose names begin with an underscore. All other such modules are denied, because many of them
# implement denied modules.
PRIVATE_ALLOWED = frozenset(("__future__", "__main__", "_codecs", "_thread"))
# Members of a denied module that are allowed.
ALLOWED_MEMBERS = ("multiprocessing.cpu_count", "multiprocessing.dummy", "multiprocessing.pool.ThreadPool")
# Members that have the name of a denied module by coincidence.
HOMONYMS = frozenset(("scipy.signal",))

# Denied members of allowed modules. All members of a denied member are denied too.
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
# Functions that are denied at any path, because pandas and numpy export them at several paths.
DENIED_FUNCTIONS = frozenset("DataSource ctypeslib f2py load_library open_code read_clipboard".split())
# Functions whose first argument is the name of a module to load or to find.
MODULE_LOADERS = frozenset(("__import__", "importlib.import_module", "importlib.util.find_spec"))

# Attributes of any object that lead to the namespaces of other modules, to code or to native memory.
DENIED_ATTRIBUTES = frozenset(
    """
    __builtins__ __code__ __globals__ __import__ __loader__ __subclasses__ ag_code ag_frame as_ctypes co_code co_consts cr_code
    cr_frame ctypeslib f_builtins f_globals func_code func_globals gi_code gi_frame subprocess_exec
    subprocess_shell to_clipboard
    """.split()
)
# Names of variables that lead to the namespaces of other modules, or to the construction of classes.
DENIED_NAMES = frozenset("__builtins__ __build_class__ __loader__ __spec__".split())

# Methods of any object whose first or second argument, or one of PATH_KEYWORDS, is a path.
PATH_METHODS = frozenset(
    """
    fromfile fromregex genfromtxt imread imsave loadmat loadtxt memmap open_memmap read_csv read_excel read_feather
    read_fwf read_hdf read_html read_json read_orc read_parquet read_pickle read_sas read_spss read_stata read_table
    read_xml readsav savefig savemat savetxt savez savez_compressed to_csv to_excel to_feather to_hdf to_html to_json
    to_latex to_markdown to_parquet to_pickle to_stata to_xml tofile
    """.split()
)
# Functions of modules whose first or second argument, or one of PATH_KEYWORDS, is a path. The added names, such as `open`, are too common
# to be checked as methods of any object.
PATH_FUNCTIONS = PATH_METHODS | frozenset(
    """
    BZ2File ExcelFile ExcelWriter FileHandler FileIO GzipFile HDFStore LZMAFile ZipFile basicConfig connect iterparse load
    open parse save
    """.split()
)
PATH_KEYWORDS = frozenset("excel_writer file filename filepath_or_buffer fname io path path_or_buf".split())
# Directories of the operating system. A program that contains a path into one of them attempts to read the machine's files.
SYSTEM_DIRECTORIES = frozenset("bin boot dev etc lib lib64 opt proc root run sbin sys var".split())
SYSTEM_FILES_ALLOWED = frozenset(f"/dev/{name}" for name in ("null", "random", "stderr", "stdin", "stdout", "urandom"))


def is_denied(path: str) -> bool:
    """Whether a dotted path, beginning with its top-level module, is denied or is a member of something denied."""
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
    """Whether a path is an allowed member of a denied module, or a member of one."""
    return any(path == member or path.startswith(f"{member}.") for member in ALLOWED_MEMBERS)
