"""
What a program may not name: tables only. `scan.py` reads them, and the import that guards a running program.

It is policy with a message, never the wall: whatever slips through meets the sandbox. Hence an allow-list for modules,
where a list is short, and a deny-list for attributes, where it must not hit names of the caller's own data.
"""

from __future__ import annotations

# Top-level modules that a program may import: the five libraries, what they return objects of, and the part of the
# standard library that computes, keeps or formats values.
ALLOWED_MODULES = frozenset(
    """
    numpy pandas scipy matplotlib seaborn mpl_toolkits dateutil pytz six
    __future__ abc argparse array asyncio base64 binascii bisect bz2 calendar cmath codecs collections colorsys
    concurrent configparser contextlib contextvars copy csv dataclasses datetime decimal difflib enum errno fnmatch
    fractions functools gc graphlib gzip hashlib heapq hmac html io ipaddress itertools json keyword locale logging lzma
    math numbers operator pprint queue random re reprlib sched secrets shlex sqlite3 statistics string stringprep struct
    sys textwrap threading time timeit token tokenize tomllib traceback types typing typing_extensions unicodedata
    urllib uuid warnings weakref xml zipfile zlib zoneinfo
    """.split()
)

# Modules that are reached through an allowed one (`random._os`, `pandas.io.common.os`): the underscore does not count.
HIDDEN_MODULES = frozenset(
    """
    os posix nt subprocess sys builtins importlib imp socket ssl ctypes shutil pathlib posixpath tempfile glob pickle
    marshal shelve multiprocessing signal pty fcntl mmap resource platform http ftplib smtplib requests inspect site
    sysconfig runpy pkgutil code codeop webbrowser ctypeslib f2py distutils
    """.split()
)
# Members that bear the name of such a module and are none.
HOMONYMS = frozenset(("scipy.signal", "sys.platform"))

# Parts of an allowed module, with all that is below them.
DENIED_MEMBERS = frozenset(
    """
    asyncio.create_subprocess_exec asyncio.create_subprocess_shell asyncio.open_connection asyncio.start_server
    asyncio.open_unix_connection asyncio.start_unix_server codecs.open concurrent.futures.ProcessPoolExecutor
    concurrent.futures.process gc.get_objects gc.get_referents gc.get_referrers io.FileIO io.open io.open_code
    logging.config logging.handlers matplotlib.testing pandas._testing pandas.io.clipboard sys._current_exceptions
    sys._current_frames sys._getframe sys._getframemodulename sys.addaudithook sys.breakpointhook sys.call_tracing
    sys.meta_path sys.modules sys.monitoring sys.path sys.path_hooks sys.path_importer_cache sys.remote_exec
    sys.setprofile sys.settrace sys.unraisablehook threading.setprofile threading.settrace tokenize.open types.CodeType
    types.FunctionType types.LambdaType typing.ForwardRef typing._eval_type typing.get_type_hints urllib.request xml.sax
    zipfile.Path
    """.split()
)
# Functions that are denied wherever in a module they are found: pandas and numpy name them at several paths.
DENIED_FUNCTIONS = frozenset(
    "DataSource find_spec import_module load_library open_code read_clipboard read_gbq read_pickle".split()
)

# Attributes of any object that lead to frames, namespaces, code or every class there is.
DENIED_ATTRIBUTES = frozenset(
    """
    __base__ __bases__ __builtins__ __closure__ __code__ __func__ __globals__ __import__ __loader__ __mro__
    __objclass__ __reduce__ __reduce_ex__ __self__ __spec__ __subclasses__ __subclasshook__ __wrapped__
    ag_code ag_frame co_code co_consts cr_code cr_frame f_back f_builtins f_code f_globals f_locals func_code
    func_globals gi_code gi_frame tb_frame tb_next _getframe _current_frames as_ctypes ctypeslib to_clipboard
    subprocess_exec subprocess_shell
    """.split()
)
# The same for plain names.
DENIED_NAMES = frozenset("__builtins__ __build_class__ __import__ __loader__ __spec__".split())
# Builtins that run a string, start a debugger or a pager, or hand out the namespace.
DENIED_BUILTINS = frozenset("breakpoint compile eval exec globals help".split())

# Functions whose first or second argument, or one of PATH_KEYWORDS, is a path or an address; on any object.
PATH_METHODS = frozenset(
    """
    fromfile fromregex genfromtxt imread imsave loadmat loadtxt memmap open_memmap read_csv read_excel read_feather
    read_fwf read_hdf read_html read_json read_orc read_parquet read_sas read_spss read_stata read_table read_xml
    readsav savefig savemat savetxt savez savez_compressed to_csv to_excel to_feather to_hdf to_html to_json to_latex
    to_markdown to_parquet to_pickle to_stata to_xml tofile
    """.split()
)
# The same, but only as a member of a module: objects of the caller have such methods too.
PATH_FUNCTIONS = PATH_METHODS | frozenset(
    """
    BZ2File ExcelFile ExcelWriter FileHandler GzipFile HDFStore LZMAFile ZipFile basicConfig connect iterparse load open
    parse save
    """.split()
)
PATH_KEYWORDS = frozenset("excel_writer file filename filepath_or_buffer fname io path path_or_buf".split())
# The only directory that a program may write to; it is the working directory too.
SCRATCH = "/tmp/"


def is_denied(path: str) -> bool:
    """Whether a dotted path, spelled from its top-level module, is or lies in something that is not allowed."""
    parts = path.split(".")
    if parts[0] not in ALLOWED_MODULES:
        return True
    for length in range(2, len(parts) + 1):
        part, prefix = parts[length - 1], ".".join(parts[:length])
        if prefix in DENIED_MEMBERS or part in DENIED_FUNCTIONS:
            return True
        if part.lstrip("_") in HIDDEN_MODULES and prefix not in HOMONYMS:
            return True
    return False
