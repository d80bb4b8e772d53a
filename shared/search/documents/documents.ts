/**
 * Takes documents apart in a thread of its own: whatever a file or a page holds, it can end that thread and nothing else. One
 * document at a time; what takes too long or too much memory ends the thread, and the next document starts another.
 */
import { Worker } from 'node:worker_threads'
import { ServiceError } from '#shared/error.ts'
import type { ReadDocument } from '#shared/search/text/builder.ts'
import type { DocumentInput, DocumentReply } from './message.ts'

/** Time for one document. */
const DOCUMENT_MS = 20_000
/** Memory of the thread: a page of 5 MB takes about 100 MB. */
const HEAP_MB = 384
/** Documents that may wait for their turn. */
const WAITING_MAX = 256
/** How long the thread is kept without work. */
const IDLE_MS = 30_000

/** Reads documents one after the other. Dispose it with {@link DocumentReader.close}. */
export class DocumentReader {
  readonly #documentMs: number
  #worker: Worker | undefined
  #last: Promise<unknown> = Promise.resolve()
  #waiting = 0
  #idle: NodeJS.Timeout | undefined
  #isClosed = false

  constructor({ documentMs = DOCUMENT_MS }: { readonly documentMs?: number } = {}) {
    this.#documentMs = documentMs
  }

  /**
   * Gives the text of a document.
   *
   * @throws ServiceError `unsupported_media_type` when it is not what it says it is or cannot be read in time and memory;
   *   `overloaded`; the signal's reason
   */
  async read(input: DocumentInput, signal: AbortSignal): Promise<ReadDocument> {
    if (this.#waiting >= WAITING_MAX) throw new ServiceError('overloaded', 'Too many documents wait to be read.')
    this.#waiting++
    const turn = this.#last.then(async () => {
      signal.throwIfAborted()
      return await this.#readNow(input, signal)
    })
    this.#last = turn.catch(() => {})
    return await turn.finally(() => this.#waiting--)
  }

  async close(): Promise<void> {
    this.#isClosed = true
    await this.#end()
  }

  async #readNow(input: DocumentInput, signal: AbortSignal): Promise<ReadDocument> {
    if (this.#isClosed) throw new ServiceError('overloaded', 'The reader of documents is closed.')
    clearTimeout(this.#idle)
    this.#worker ??= this.#start()
    const worker = this.#worker
    try {
      const reply = await replyOf(worker, input, AbortSignal.any([signal, AbortSignal.timeout(this.#documentMs)]))
      if ('problem' in reply) throw new ServiceError('unsupported_media_type', reply.problem)
      return reply.document
    } catch (error) {
      if (ServiceError.from(error).code === 'unsupported_media_type') throw error
      await this.#end()
      if (signal.aborted) throw signal.reason
      throw new ServiceError('unsupported_media_type', 'The document could not be read within its limits.', {
        cause: error,
      })
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

  async #end(): Promise<void> {
    clearTimeout(this.#idle)
    const worker = this.#worker
    this.#worker = undefined
    await worker?.terminate()
  }
}

/** Hands one document to the thread. @throws Error When the thread ends instead of answering; the signal's reason */
async function replyOf(worker: Worker, input: DocumentInput, signal: AbortSignal): Promise<DocumentReply> {
  const { promise, resolve, reject } = Promise.withResolvers<DocumentReply>()
  const onExit = () => reject(new Error('The thread ended.'))
  const onAbort = () => reject(signal.reason)
  worker.once('message', resolve)
  worker.once('error', reject)
  worker.once('exit', onExit)
  signal.addEventListener('abort', onAbort, { once: true })
  try {
    signal.throwIfAborted()
    worker.ref()
    worker.postMessage(input)
    return await promise
  } finally {
    worker.unref()
    worker.off('message', resolve).off('error', reject).off('exit', onExit)
    signal.removeEventListener('abort', onAbort)
  }
}
