/** What every sandbox has beside the standard library. */
export const LIBRARIES = ['numpy', 'pandas', 'scipy', 'matplotlib', 'seaborn'] as const

/** Modules of the standard library, as `sys.stdlib_module_names` of Python 3.11 to 3.15 all have them. */
const STANDARD = `
  abc antigravity argparse array ast asyncio atexit base64 bdb binascii bisect builtins bz2 cProfile calendar cmath cmd code
  codecs codeop collections colorsys compileall concurrent configparser contextlib contextvars copy copyreg csv ctypes curses
  dataclasses datetime dbm decimal difflib dis doctest email encodings ensurepip enum errno faulthandler fcntl filecmp fileinput
  fnmatch fractions ftplib functools gc genericpath getopt getpass gettext glob graphlib grp gzip hashlib heapq hmac html http
  idlelib imaplib importlib inspect io ipaddress itertools json keyword linecache locale logging lzma mailbox marshal math
  mimetypes mmap modulefinder multiprocessing netrc ntpath numbers opcode operator optparse os pathlib pdb pickle pickletools
  pkgutil platform plistlib poplib posix posixpath pprint profile pstats pty pwd py_compile pyclbr pydoc pydoc_data pyexpat queue
  quopri random re readline reprlib resource rlcompleter runpy sched secrets select selectors shelve shlex shutil signal site
  smtplib socket socketserver sqlite3 ssl stat statistics string stringprep struct subprocess symtable sys sysconfig syslog
  tabnanny tarfile tempfile termios textwrap this threading time timeit tkinter token tokenize tomllib trace traceback
  tracemalloc tty turtle turtledemo types typing unicodedata unittest urllib uuid venv warnings wave weakref webbrowser wsgiref
  xml xmlrpc zipapp zipfile zipimport zlib zoneinfo`

const INSTALLED: ReadonlySet<string> = new Set([...LIBRARIES, ...STANDARD.trim().split(/\s+/)])

/** Whether code may count on a library, by the name it is imported by: `numpy`, `matplotlib.pyplot`, `json`. */
export function isInstalled(name: string): boolean {
  const [root = ''] = name.split('.', 1)
  return INSTALLED.has(root)
}
