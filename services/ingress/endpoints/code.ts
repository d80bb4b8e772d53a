import { CodeBody, type CodeRequest, CodeResult, RUN_SECONDS_DEFAULT } from '#schemas/kinds/code.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import type { JobEndpoint } from '#services/ingress/calls/call.ts'
import { userIdOf } from '#services/ingress/calls/endpoint.ts'
import { execute } from '#shared/kinds/execute/execute.ts'
import { isHighSurrogate, isLowSurrogate } from '#shared/lib/buffers.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { CODE_POINTS_MAX } from '#shared/sandbox/protocol/limits.ts'

/** Characters that are counted between two event-loop yields. Counting this many takes about 0.5 ms. */
const PIECE_CHARS = 64 * 1024

const LIBRARIES = ['numpy', 'pandas', 'scipy', 'matplotlib', 'seaborn'] as const

/** Names of the modules in the standard library of Python 3.11 to 3.15, from `sys.stdlib_module_names`. */
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

/**
 * POST /v1/tools/code (docs/reference/compatibility.md, Code): runs Python in a sandbox. If the code fails, then the
 * call still succeeds, and the answer describes the failure.
 */
export const code: JobEndpoint = {
  path: '/v1/tools/code',
  describe: async () => ({
    id: 'runCode',
    tag: 'Tools',
    summary: 'Run Python code in a sandbox',
    guide: 'code',
    body: { CodeRequest: CodeBody },
    answer: {
      description: 'Output, exit code and plots of the run. With `stream: true`, the output is sent in events.',
      json: { CodeResult },
      events: null,
    },
  }),
  format: 'openai',
  kind: execute,
  canStream: () => true,
  async prepare(context, caller, body) {
    const asked = parseBody(CodeBody, body, 'openai')
    await requireCode(asked.code)
    requireLibraries(asked.libraries ?? [])
    const userId = userIdOf(caller)
    const request: CodeRequest = {
      code: asked.code,
      timeout_seconds: timeoutOf(asked.timeout ?? undefined, context.config.codeSecondsMax),
      ...(userId !== undefined && { user_id: userId }),
    }
    return {
      model: asked.lang,
      userId,
      body: request,
      stream: asked.stream ?? false,
      timeoutMs: context.config.requestTimeoutMs,
    }
  },
}

/**
 * Checks the length and the characters of the source. Errors of syntax are not checked here, because the sandbox
 * reports them as the result of the run.
 */
async function requireCode(source: string): Promise<void> {
  const points = source.length > CODE_POINTS_MAX ? await runYielding(codePoints(source)) : 0
  if (points > CODE_POINTS_MAX) {
    const message = `Invalid 'code': string too long. Expected a string with maximum length ${CODE_POINTS_MAX}, but got a string with length ${points} instead.`
    throw refuse('string_above_max_length', 'code', message)
  }
  if (source.trim() === '') throw refuse('invalid_value', 'code', "Invalid 'code': the code is blank.")
  if (source.includes('\0')) throw refuse('invalid_value', 'code', "Invalid 'code': the code contains a NUL character.")
}

/**
 * Counts the code points of a text without creating an array of them. Such an array would need a gigabyte for 28 MB of
 * code.
 */
function* codePoints(text: string): Generator<undefined, number> {
  let points = text.length
  for (let i = 1; i < text.length; i++) {
    if (isPair(text, i)) points--
    if (i % PIECE_CHARS === 0) yield
  }
  return points
}

function isPair(text: string, at: number): boolean {
  return isLowSurrogate(text.charCodeAt(at)) && isHighSurrogate(text.charCodeAt(at - 1))
}

function requireLibraries(names: readonly string[]): void {
  const unknown = names.find((name) => !isInstalled(name))
  if (unknown === undefined) return
  const message = `The library '${excerpt(unknown)}' is not installed. Available libraries: ${LIBRARIES.join(', ')}, and the Python standard library.`
  throw refuse('invalid_value', 'libraries', message)
}

function timeoutOf(asked: number | undefined, most: number): number {
  if (asked === undefined) return Math.min(RUN_SECONDS_DEFAULT, most)
  if (asked <= most) return asked
  const message = `Invalid 'timeout': integer above maximum value. Expected a value <= ${most}, but got ${asked} instead.`
  throw refuse('integer_above_max_value', 'timeout', message)
}

function refuse(code: ConstructorParameters<typeof ServiceError>[0], param: string, message: string): ServiceError {
  return new ServiceError(code, message, { param })
}

function isInstalled(name: string): boolean {
  const [root = ''] = name.split('.', 1)
  return INSTALLED.has(root)
}
