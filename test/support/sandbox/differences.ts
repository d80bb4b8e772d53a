/*
 * Exceptions from the expected results in the corpus files. An exception applies to every adapter (docs/guides/code.md), or only to an adapter
 * that lacks a feature. Each has a reason. All other programs must have the result in their file.
 */
import type { SandboxName } from '#shared/sandbox/sandbox.ts'
import type { Expectation, Snippet } from './corpus.ts'

interface Difference {
  readonly ids: readonly string[]
  readonly reason: string
  /** Fields that replace those of the corpus file. */
  readonly expect?: Expectation
  readonly unscanned?: Expectation
}

/** Returns an expected result that applies whether the code scan is on or off. */
function bothWays(expectation: Expectation): Pick<Difference, 'expect' | 'unscanned'> {
  return { expect: expectation, unscanned: expectation }
}

/**
 * Attacks of the reference corpora that pass the code scan, because ordinary programs use the same features. Examples: computed paths and
 * addresses, `pathlib`, pickles, code in strings, `atexit`. Only the isolation of the sandbox stops them.
 */
export const UNFLAGGED: ReadonlySet<string> = new Set([
  'array-to-root',
  'csv-of-address',
  'eval-of-base64',
  'exec-in-list',
  'file-fd',
  'file-pathlib',
  'nat-pd-pickle',
  'obj-decorator-exec',
  'obj-type-hints',
  'res-atexit',
  'res-inodes',
])

const MEMORY: Expectation = { success: [true, false], exit_code: [0, 1, 137, -1] }

const EVERYWHERE: readonly Difference[] = [
  {
    ids: ['res-memory-slow', 'res-zip-bomb', 'res-plot-bomb', 'res-plot-giant'],
    reason:
      'docs/reference/compatibility.md, Code: a run that is ended for its memory has success false and exit_code -1, not true and 137.',
    expect: MEMORY,
    unscanned: MEMORY,
  },
  {
    ids: ['plot-no-show', 'plot-savefig-bytesio', 'saved-figure'],
    reason: 'docs/guides/code.md, Figures: figures that were saved, or are open when the program ends, are plots.',
    ...bothWays({ plots: 1 }),
  },
]

const OF_ADAPTER: Readonly<Record<SandboxName, readonly Difference[]>> = {
  docker: [],
  zygote: [],
  wasm: [
    {
      ids: ['thread-that-stays', 'threading', 'pool-of-threads', 'loops-and-threads'],
      reason: 'It has no threads: starting one is an error of the program.',
      ...bothWays({ success: true, exit_code: 1, stdout_contains: '', stderr_contains: "can't start new thread" }),
    },
    {
      ids: ['thread-pool-of-dummy'],
      reason: 'It has no threads, and nothing that could wake one.',
      ...bothWays({ exit_code: 1, stdout_contains: '' }),
    },
    {
      ids: ['figures-missing-sklearn'],
      reason: 'Its library has more packages than the five, scikit-learn among them.',
      expect: { stdout_contains: '' },
    },
    {
      ids: ['figures-threads-that-plot'],
      reason: 'It has no threads, and so no figure is drawn.',
      expect: { exit_code: 1, plots: 0, stderr_contains: "can't start new thread" },
    },
    {
      ids: ['figures-jpeg-by-savefig', 'figures-pillow-drawing'],
      reason:
        'Its Pillow has no encoder of JPEG: saving one is an error of the program. What was drawn before arrives.',
      expect: { exit_code: 1, plots: 1, stderr_contains: 'encoder jpeg not available' },
    },
    {
      ids: ['figures-mandelbrot-webp'],
      reason: 'Its Pillow has no encoder of WebP.',
      expect: { exit_code: 1, plots: 0, stderr_contains: 'unknown file extension' },
    },
    {
      ids: ['res-deadlock'],
      reason: 'Without threads nobody can release the lock: the interpreter traps at once instead of waiting.',
      ...bothWays({ success: true, exit_code: 139 }),
    },
    {
      ids: ['res-numpy-memory', 'res-list-mult'],
      reason: 'Sizes have 32 bits: what does not fit is refused before memory is asked for.',
      expect: { stderr_contains: 'Error: ' },
    },
    {
      ids: ['sys-facts'],
      reason: 'Its platform is wasi, and sys.maxsize is 2**31 - 1.',
      ...bothWays({ stdout_contains: 'wasi False True little True' }),
    },
    {
      ids: ['numpy-warning'],
      reason: 'WebAssembly has no flags of floating point: numpy cannot warn.',
      ...bothWays({ stderr_contains: '' }),
    },
    {
      ids: ['nat-ctypes-null', 'nat-ptrace', 'nat-mount', 'nat-unshare', 'nat-bpf-keyctl', 'nat-io-uring'],
      reason: 'There is no native code to call: ctypes refuses.',
      unscanned: { exit_code: 1, stdout_contains: '', stderr_contains: 'ctypes is unavailable' },
    },
    {
      ids: ['nat-setuid', 'res-fork-bomb', 'forge-proc-fd'],
      reason: 'There are no users and no processes: the functions do not exist.',
      unscanned: { exit_code: 1, stdout_contains: '', stderr_contains: "AttributeError: module 'os' has no attribute" },
    },
    {
      ids: ['res-rlimit-raise'],
      reason: 'There are no limits of a process to raise: the module does not exist.',
      unscanned: { exit_code: 1, stdout_contains: '', stderr_contains: 'ModuleNotFoundError' },
    },
  ],
}

/** Returns the expected result of a program on an adapter. For attacks, the result depends on whether the scan is on. */
export function expectationOf(snippet: Snippet, adapter: SandboxName, scan: boolean): Expectation {
  const key = scan ? 'expect' : 'unscanned'
  const isUnflagged = UNFLAGGED.has(snippet.id)
  const listed = scan && !isUnflagged ? snippet.expect : (snippet.unscanned ?? snippet.expect)
  const differences = [...EVERYWHERE, ...OF_ADAPTER[adapter]].filter(({ ids }) => ids.includes(snippet.id))
  const verdict: Expectation = isUnflagged ? { violations: 'none' } : {}
  return Object.assign({}, listed, verdict, ...differences.map((difference) => difference[key] ?? {}))
}
