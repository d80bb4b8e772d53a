/**
 * Reads documents in threads, because a hostile document can block or exhaust the thread that reads it. A thread reads one document at a time. If a
 * document takes too long or too much memory, then its thread ends, and the next document starts a new thread.
 *
 * Projects are served round robin, and no project gets all threads. Otherwise 200 documents that each take the whole {@link DOCUMENT_TIMEOUT_MS}
 * would delay the documents of other projects.
 *
 * Each document also causes work on the event loop, such as ranking its passages. The low priority of the threads does not limit this work. If
 * several projects read, then a thread pauses after a document of a project that has used more reading time than another (see {@link ReadingTimes}).
 * The pause is twice as long as the document took.
 */
import { availableParallelism } from 'node:os'
import { Worker } from 'node:worker_threads'
import { Semaphore } from '#shared/capacity/semaphore.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { ReadDocument } from '#shared/search/text/builder.ts'
import type { DocumentInput, RobotsQuestion, ThreadReply, ThreadTask } from './message.ts'

const DOCUMENT_TIMEOUT_MS = 10_000
const THREADS_MAX = 4
const ROBOTS_TIMEOUT_MS = 2_000
/** Maximum heap of a thread, in MB. Reading a page of 5 MB takes about 100 MB. */
const HEAP_MB = 384
/** Maximum bytes of a thread's buffers, which are outside its heap. For example, 2 MB of a PDF may unpack to 2 GB. */
const BUFFER_BYTES_MAX = 256 * 1024 * 1024
const MEASURE_INTERVAL_MS = 50
/** Maximum waiting documents per project. 12 research runs that each read up to five documents concurrently need 60. */
const QUEUED_PER_PROJECT_MAX = 64
const IDLE_TIMEOUT_MS = 30_000
/**
 * Shortest and longest pause in ms after a document of a project that has used more reading time than another. The shortest pause is the 10 ms of work
 * that a short document causes on the event loop. All threads of a project may pause at the same time, so the documents of all of them cause work in
 * one pause. The shortest pause is therefore multiplied by the number of threads that one project may use.
 */
const PAUSE_MS = { min: 10, max: 250 }
/**
 * Length of a pause, as a multiple of the time that the document took. Measured with a second project that reads all the time: a run takes 2.2 times
 * as long as alone with a factor of 1, and 1.5 times with 2.
 */
const PAUSE_FACTOR = 2
/** Time in ms for which a project counts as active after its last document. */
const ACTIVE_MS = 2_000
/**
 * Head start in ms of reading time. A project that becomes active may use this much reading time before it pauses for other projects. A research run
 * that reads 18 ordinary pages uses about 200 ms.
 */
const HEAD_START_MS = 250

export interface DocumentReaderOptions {
  /** Maximum time in ms per document. If a document takes longer, then its thread is replaced. Default: 10 s. */
  readonly documentMs?: number
  readonly threads?: number
  /** Maximum bytes of a thread's buffers. If they grow larger, then the thread is replaced. Default: 256 MiB. */
  readonly bufferBytesMax?: number
}

export class DocumentReader {
  readonly #documentMs: number
  readonly #threadsMax: number
  readonly #bufferBytesMax: number
  readonly #permits: Semaphore
  readonly #permitsPerProject: number
  readonly #times = new ReadingTimes()
  readonly #threads: DocumentThread[] = []
  readonly #idle: DocumentThread[] = []

  constructor(options: DocumentReaderOptions = {}) {
    const { documentMs = DOCUMENT_TIMEOUT_MS, threads = THREADS_MAX, bufferBytesMax = BUFFER_BYTES_MAX } = options
    this.#threadsMax = Math.min(threads, Math.max(2, availableParallelism()))
    this.#documentMs = documentMs
    this.#bufferBytesMax = bufferBytesMax
    this.#permitsPerProject = Math.max(1, this.#threadsMax - 1)
    this.#permits = new Semaphore({
      permits: this.#threadsMax,
      permitsPerKey: this.#permitsPerProject,
      waitingPerKeyMax: QUEUED_PER_PROJECT_MAX,
      refusal: queueFull,
    })
  }

  /**
   * Returns the text of a document.
   *
   * @param project Id of the calling project. Projects share the threads fairly.
   * @throws ServiceError `unsupported_media_type` if the document has another type than declared, or exceeds the maximum time or memory. `overloaded`
   * if too many documents of the project wait, or the abort reason of the signal.
   */
  async read(input: DocumentInput, project: string, signal: AbortSignal): Promise<ReadDocument> {
    const reply = await this.#runTask(input, this.#documentMs, project, signal)
    if ('document' in reply) return reply.document
    throw new ServiceError('unsupported_media_type', 'problem' in reply ? reply.problem : 'The document is damaged.')
  }

  /**
   * Whether a robots.txt allows a page to be read. A robots.txt that takes too long to parse counts as a refusal.
   *
   * @throws ServiceError `overloaded`, or the abort reason of the signal
   */
  async isAllowedByRobots(question: RobotsQuestion, project: string, signal: AbortSignal): Promise<boolean> {
    const reply = await this.#runTask(question, ROBOTS_TIMEOUT_MS, project, signal).catch((error: unknown) => {
      if (ServiceError.from(error).code === 'unsupported_media_type') return { isAllowed: false }
      throw error
    })
    return 'isAllowed' in reply && reply.isAllowed
  }

  async close(): Promise<void> {
    await Promise.all(this.#threads.map((thread) => thread.close()))
  }

  async #runTask(task: ThreadTask, timeoutMs: number, project: string, signal: AbortSignal): Promise<ThreadReply> {
    await this.#permits.take(signal, 1, project)
    const thread = this.#takeThread(project)
    this.#startSpare()
    const startedAtMs = performance.now()
    try {
      return await thread.do(task, timeoutMs, signal)
    } finally {
      this.#idle.push(thread)
      const nowMs = performance.now()
      this.#times.add(project, nowMs - startedAtMs, nowMs)
      this.#release(project, nowMs - startedAtMs)
    }
  }

  /**
   * Releases a project's right to use a thread. If the project has used more reading time than another, then the release is delayed. All threads of
   * the project may pause at the same time, so the shortest pause is multiplied by their number.
   */
  #release(project: string, tookMs: number): void {
    const release = () => this.#permits.release(1, project)
    if (!this.#times.isAhead(project)) return release()
    setTimeout(release, Math.min(PAUSE_MS.max, Math.max(PAUSE_MS.min * this.#permitsPerProject, PAUSE_FACTOR * tookMs)))
  }

  /**
   * Prefers the thread that the project used last, then the thread that has been idle longest. If the documents of
   * a project make their threads exit, then only this project waits for new threads. Other projects keep their running threads.
   */
  #takeThread(project: string): DocumentThread {
    const own = this.#idle.findLastIndex((thread) => thread.project === project)
    const at = own >= 0 ? own : this.#idle.findIndex((thread) => thread.isStarted)
    const [thread = this.#newThread()] = this.#idle.splice(at, 1)
    thread.project = project
    return thread
  }

  /** Starts one idle thread in advance, because starting a thread takes as long as reading several documents. */
  #startSpare(): void {
    if (this.#idle.some((thread) => thread.isStarted)) return
    if (this.#idle.length === 0 && this.#threads.length < this.#threadsMax) this.#idle.push(this.#newThread())
    this.#idle[0]?.start()
  }

  #newThread(): DocumentThread {
    const thread = new DocumentThread(this.#bufferBytesMax)
    this.#threads.push(thread)
    return thread
  }
}

function queueFull(): ServiceError {
  const message = `More than ${QUEUED_PER_PROJECT_MAX} documents of this project wait to be read. Try again later.`
  return new ServiceError('overloaded', message)
}

/** Owns one thread at a time. If the thread takes too long or exits, then the next document starts a new one. */
class DocumentThread {
  /** Project whose document the thread read last. */
  project: string | undefined
  readonly #bufferBytesMax: number
  #worker: Worker | undefined
  #idle: NodeJS.Timeout | undefined
  #isClosed = false

  constructor(bufferBytesMax: number) {
    this.#bufferBytesMax = bufferBytesMax
  }

  async do(task: ThreadTask, timeoutMs: number, signal: AbortSignal): Promise<ThreadReply> {
    if (this.#isClosed)
      throw new ServiceError('overloaded', 'This worker is shutting down and reads no more documents; retry.')
    signal.throwIfAborted()
    clearTimeout(this.#idle)
    const worker = this.#started()
    const measured = measureBuffers(worker, this.#bufferBytesMax)
    try {
      return await replyOf(worker, task, AbortSignal.any([signal, measured.signal, AbortSignal.timeout(timeoutMs)]))
    } catch (cause) {
      await this.#end()
      signal.throwIfAborted()
      const message =
        (cause as Error).name === 'TimeoutError'
          ? `Reading the document took longer than ${timeoutMs / 1_000} s.`
          : 'The document needs too much memory, or its format cannot be read.'
      throw new ServiceError('unsupported_media_type', message, { cause })
    } finally {
      measured.stop()
      this.#rest()
    }
  }

  get isStarted(): boolean {
    return this.#worker !== undefined
  }

  start(): void {
    if (this.#isClosed) return
    this.#started().postMessage({ type: 'start' } satisfies ThreadTask)
    this.#rest()
  }

  #started(): Worker {
    this.#worker ??= this.#open()
    return this.#worker
  }

  #open(): Worker {
    const worker = new Worker(new URL('./worker.ts', import.meta.url), {
      env: {},
      resourceLimits: { maxOldGenerationSizeMb: HEAP_MB, maxYoungGenerationSizeMb: 32, stackSizeMb: 4 },
      // Libraries print warnings about broken documents. This output is piped to this process and discarded, so that no text of a document reaches
      // the log.
      stdout: true,
      stderr: true,
    })
    worker.stdout.resume()
    worker.stderr.resume()
    worker.unref()
    // If a thread fails between two documents, then this event has no other listener and would end the process.
    worker.on('error', () => {})
    worker.on('exit', () => {
      if (this.#worker === worker) this.#worker = undefined
    })
    return worker
  }

  #rest(): void {
    clearTimeout(this.#idle)
    this.#idle = setTimeout(() => void this.#end(), IDLE_TIMEOUT_MS).unref()
  }

  async close(): Promise<void> {
    this.#isClosed = true
    await this.#end()
  }

  async #end(): Promise<void> {
    clearTimeout(this.#idle)
    const worker = this.#worker
    this.#worker = undefined
    await worker?.terminate()
  }
}

/**
 * Measures the buffers of a thread periodically. The measurement also works while the thread is in an endless loop. The signal aborts if the buffers
 * exceed the maximum.
 */
function measureBuffers(worker: Worker, bytesMax: number): { readonly signal: AbortSignal; stop(): void } {
  const isOver = new AbortController()
  const measure = async () => {
    const { external_memory } = await worker.getHeapStatistics()
    if (external_memory > bytesMax) isOver.abort(new Error(`The document needs more than ${bytesMax} bytes of memory.`))
  }
  const timer = setInterval(() => void measure().catch(() => {}), MEASURE_INTERVAL_MS).unref()
  return { signal: isOver.signal, stop: () => clearInterval(timer) }
}

/**
 * Sends one document to the thread.
 *
 * @throws Error if the thread exits without a reply, or the abort reason of the signal
 */
async function replyOf(worker: Worker, task: ThreadTask, signal: AbortSignal): Promise<ThreadReply> {
  const { promise, resolve, reject } = Promise.withResolvers<ThreadReply>()
  const onExit = () => reject(new Error('The thread that reads the document ended.'))
  const onAbort = () => reject(signal.reason)
  worker.once('message', resolve)
  worker.once('error', reject)
  worker.once('exit', onExit)
  signal.addEventListener('abort', onAbort, { once: true })
  try {
    signal.throwIfAborted()
    worker.ref()
    worker.postMessage(task)
    return await promise
  } finally {
    worker.unref()
    worker.off('message', resolve).off('error', reject).off('exit', onExit)
    signal.removeEventListener('abort', onAbort)
  }
}

/**
 * Decides which project has used more reading time than others. Reading time is the time for which the documents of a project occupied threads.
 *
 * The method is start-time fair queueing. Each active project has a virtual time in ms, to which the reading time of its documents is added. Idle
 * time cannot be saved up: a project that becomes active starts at most {@link HEAD_START_MS} below the lowest virtual time.
 *
 * Example: project A is at 9,000 ms when project B reads its first page. B starts at 8,750 ms, so A pauses until B has used 250 ms. Afterwards, A and
 * B alternate.
 */
export class ReadingTimes {
  readonly #active = new Map<string, { readonly virtualMs: number; readonly usedAtMs: number }>()

  /** Adds the reading time of a document of `project` that ended at `nowMs`. */
  add(project: string, ms: number, nowMs: number): void {
    for (const [name, { usedAtMs }] of this.#active) if (nowMs - usedAtMs > ACTIVE_MS) this.#active.delete(name)
    const startMs = this.#active.get(project)?.virtualMs ?? Math.max(0, this.#lowestMs() - HEAD_START_MS)
    this.#active.set(project, { virtualMs: startMs + ms, usedAtMs: nowMs })
  }

  /** Whether another active project has used less reading time, so that `project` must pause. */
  isAhead(project: string): boolean {
    return (this.#active.get(project)?.virtualMs ?? 0) > this.#lowestMs()
  }

  #lowestMs(): number {
    const times = Array.from(this.#active.values(), ({ virtualMs }) => virtualMs)
    return times.length === 0 ? 0 : Math.min(...times)
  }
}
