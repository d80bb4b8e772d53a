import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { encodeFrame, encodeRunFrame, type Frame, FrameReader, splitRun } from '#shared/sandbox/protocol/frames.ts'
import { MEMORY_BYTES_MAX } from '#shared/sandbox/protocol/limits.ts'
import { HEADROOM_BYTES } from './image.ts'
import { limitModule, PAGE_BYTES } from './module.ts'
import { IMAGE_MEMORY, LIBRARY_FILES, readLibrary, readShared } from './prepared-files.ts'
import { GuestThread, type Prepared, type ThreadJob } from './thread.ts'
import type { ImageFacts } from './warm-up.ts'
import { compile } from './wasi/engine.ts'
import { readWorkerCode } from './worker-code.ts'

const JOB_BYTES_MAX = 24 << 20
const PART_TYPES = { stdout: 'O', stderr: 'E', plot: 'P' } as const

/**
 * Runs programs for the service.
 *
 * Frames from the service, each with the number of a run: `J` starts a job (JSON), `C` cancels the run.
 *
 * Frames to the service:
 *
 * 1. `I`: number of idle interpreters (JSON). The first frame of this type reports that the process is ready.
 * 2. `R` with the number of a run: contains a frame of the run: `O` stdout, `E` stderr, `P` a plot, or `X` the end
 *    (shared/sandbox/python/supervise/frames.py).
 * 3. `L` with the number of a run: the run was lost or cancelled.
 */
export async function serve(libraryDir: string, imageDir: string, readyCount: number): Promise<void> {
  const server = new Server(await load(libraryDir, imageDir), readyCount)
  await server.fill()
  const reader = new FrameReader(JOB_BYTES_MAX)
  process.stdin.on('data', (chunk: Buffer) => {
    for (const frame of reader.push(chunk)) server.take(frame)
  })
}

async function load(libraryDir: string, imageDir: string): Promise<Prepared> {
  const { segments, pages } = JSON.parse(await readFile(join(imageDir, 'ready.json'), 'utf8')) as ImageFacts
  const original = await readFile(join(libraryDir, LIBRARY_FILES.module))
  const module = await compile(limitModule(original, pages + (MEMORY_BYTES_MAX - HEADROOM_BYTES) / PAGE_BYTES, true))
  const bytes = await readShared(join(imageDir, IMAGE_MEMORY))
  const library = await readLibrary(libraryDir, {})
  return { module, library, image: { bytes, segments, pages }, code: readWorkerCode() }
}

class Server {
  readonly #prepared: Prepared
  readonly #readyCount: number
  readonly #ready: GuestThread[] = []
  readonly #running = new Map<number, AbortController>()
  #filling: Promise<void> | undefined

  constructor(prepared: Prepared, readyCount: number) {
    this.#prepared = prepared
    this.#readyCount = readyCount
  }

  take(frame: Frame): void {
    const { run, rest } = splitRun(frame)
    if (frame.type === 'C') this.#running.get(run)?.abort()
    else void this.#run(run, JSON.parse(rest.toString()) as ThreadJob)
  }

  fill(): Promise<void> {
    this.#filling ??= this.#fillOnce().finally(() => {
      this.#filling = undefined
    })
    return this.#filling
  }

  async #fillOnce(): Promise<void> {
    while (this.#ready.length < this.#readyCount) {
      const thread = new GuestThread(this.#prepared)
      await thread.ready
      this.#ready.push(thread)
    }
    this.#sendIdle()
  }

  async #run(run: number, job: ThreadJob): Promise<void> {
    const cancelling = new AbortController()
    this.#running.set(run, cancelling)
    const thread = this.#ready.shift() ?? new GuestThread(this.#prepared)
    this.#sendIdle()
    cancelling.signal.addEventListener('abort', () => void thread.stop())
    try {
      await thread.ready
      const end = await thread.run(job, (type, bytes) => write(run, PART_TYPES[type], bytes))
      write(run, 'X', Buffer.from(JSON.stringify(end)))
    } catch (error) {
      process.stdout.write(encodeRunFrame('L', run, Buffer.from((error as Error).message)))
    }
    this.#running.delete(run)
    // An error of this call is ignored: the next run then starts its own interpreter and reports the error.
    await this.fill().catch(() => {})
  }

  #sendIdle(): void {
    process.stdout.write(encodeFrame('I', Buffer.from(JSON.stringify(this.#ready.length))))
  }
}

function write(run: number, type: string, payload: Uint8Array): void {
  process.stdout.write(encodeRunFrame('R', run, encodeFrame(type, payload)))
}
