/**
 * Takes documents apart in threads of their own: a document can end its thread and nothing else. A thread reads one document at a
 * time. A document that takes too long or too much memory ends its thread, the other threads go on, and the next document starts another.
 */
import { availableParallelism } from 'node:os'
import { Worker } from 'node:worker_threads'
import { abortable } from '#shared/abortable.ts'
import { ServiceError } from '#shared/error.ts'
import type { ReadDocument } from '#shared/search/text/builder.ts'
import type { DocumentInput, RobotsQuestion, ThreadReply, ThreadTask } from './message.ts'

/** Time for one document. */
const DOCUMENT_MS = 10_000
/** Threads of one reader. A run reads at most four pages at once, so that a run cannot queue many pages before those of another. */
const THREADS_MAX = 4
/** Time for one question about a robots.txt. */
const ROBOTS_MS = 2_000
/** Memory of the thread: a page of 5 MB takes about 100 MB. */
const HEAP_MB = 384
/** Documents that may wait for their turn. */
const WAITING_MAX = 256
/** How long the thread is kept without work. */
const IDLE_MS = 30_000

export interface DocumentReaderOptions {
  /** Maximum time per document; then its thread is replaced. Default: 10 s. */
  readonly documentMs?: number
  /** Maximum number of threads, and at most one per processor core (two on a single core). Default: 4. */
  readonly threads?: number
}

/** Reads documents in the order of the calls, in several threads. Dispose it with {@link DocumentReader.close}. */
export class DocumentReader {
  readonly #documentMs: number
  readonly #threadsMax: number
  readonly #threads: DocumentThread[] = []
  readonly #idle: DocumentThread[] = []
  readonly #queue: ((thread: DocumentThread) => void)[] = []
  #waiting = 0

  constructor({ documentMs = DOCUMENT_MS, threads = THREADS_MAX }: DocumentReaderOptions = {}) {
    this.#documentMs = documentMs
    this.#threadsMax = Math.min(threads, Math.max(2, availableParallelism()))
  }

  /**
   * Gives the text of a document.
   *
   * @throws ServiceError `unsupported_media_type` when it is not what it says it is or cannot be read in time and memory;
   *   `overloaded`; the signal's reason
   */
  async read(input: DocumentInput, signal: AbortSignal): Promise<ReadDocument> {
    const reply = await this.#inTurn(input, this.#documentMs, signal)
    if ('document' in reply) return reply.document
    throw new ServiceError('unsupported_media_type', 'problem' in reply ? reply.problem : 'The document is broken.')
  }

  /**
   * Whether a robots.txt lets a page be read: one that takes too long to understand does not.
   *
   * @throws ServiceError `overloaded`; the signal's reason
   */
  async allows(question: RobotsQuestion, signal: AbortSignal): Promise<boolean> {
    const reply = await this.#inTurn(question, ROBOTS_MS, signal).catch((error: unknown) => {
      if (ServiceError.from(error).code === 'unsupported_media_type') return { isAllowed: false }
      throw error
    })
    return 'isAllowed' in reply && reply.isAllowed
  }

  async close(): Promise<void> {
    await Promise.all(this.#threads.map((thread) => thread.close()))
  }

  async #inTurn(task: ThreadTask, timeoutMs: number, signal: AbortSignal): Promise<ThreadReply> {
    if (this.#waiting >= WAITING_MAX) throw new ServiceError('overloaded', 'Too many documents wait to be read.')
    this.#waiting++
    try {
      const thread = await this.#free(signal)
      try {
        return await thread.do(task, timeoutMs, signal)
      } finally {
        this.#release(thread)
      }
    } finally {
      this.#waiting--
    }
  }

  /** A thread without work, in the order of the calls. */
  async #free(signal: AbortSignal): Promise<DocumentThread> {
    signal.throwIfAborted()
    const idle = this.#idle.pop()
    if (idle) return idle
    if (this.#threads.length < this.#threadsMax) {
      const thread = new DocumentThread()
      this.#threads.push(thread)
      return thread
    }
    const { promise, resolve } = Promise.withResolvers<DocumentThread>()
    this.#queue.push(resolve)
    return await abortable(promise, signal).catch((error: unknown) => {
      const at = this.#queue.indexOf(resolve)
      if (at >= 0) this.#queue.splice(at, 1)
      else void promise.then((thread) => this.#release(thread))
      throw error
    })
  }

  #release(thread: DocumentThread): void {
    const next = this.#queue.shift()
    if (next) next(thread)
    else this.#idle.push(thread)
  }
}

/** A thread that reads one document at a time, and is replaced if it takes too long or ends. */
class DocumentThread {
  #worker: Worker | undefined
  #idle: NodeJS.Timeout | undefined
  #isClosed = false

  async do(task: ThreadTask, timeoutMs: number, signal: AbortSignal): Promise<ThreadReply> {
    if (this.#isClosed) throw new ServiceError('overloaded', 'The reader of documents is closed.')
    signal.throwIfAborted()
    clearTimeout(this.#idle)
    this.#worker ??= this.#start()
    try {
      return await replyOf(this.#worker, task, AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]))
    } catch (cause) {
      await this.#end()
      signal.throwIfAborted()
      const message = 'The document could not be read within its limits.'
      throw new ServiceError('unsupported_media_type', message, { cause })
    } finally {
      this.#rest()
    }
  }

  #start(): Worker {
    const worker = new Worker(new URL('./worker.ts', import.meta.url), {
      env: {},
      resourceLimits: { maxOldGenerationSizeMb: HEAP_MB, maxYoungGenerationSizeMb: 32, stackSizeMb: 4 },
      // What libraries print about a broken document is nobody's concern.
      stdout: true,
      stderr: true,
    })
    worker.stdout.resume()
    worker.stderr.resume()
    worker.unref()
    // It may end between two documents: an error that nobody listens to would end the process.
    worker.on('error', () => {})
    worker.on('exit', () => {
      if (this.#worker === worker) this.#worker = undefined
    })
    return worker
  }

  #rest(): void {
    clearTimeout(this.#idle)
    this.#idle = setTimeout(() => void this.#end(), IDLE_MS).unref()
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

/** Hands one document to the thread. @throws Error When the thread ends instead of answering; the signal's reason */
async function replyOf(worker: Worker, task: ThreadTask, signal: AbortSignal): Promise<ThreadReply> {
  const { promise, resolve, reject } = Promise.withResolvers<ThreadReply>()
  const onExit = () => reject(new Error('The thread ended.'))
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
