import { Worker, type WorkerOptions } from 'node:worker_threads'
import { Semaphore } from '#shared/capacity/semaphore.ts'
import { abortable } from '#shared/lib/abortable.ts'
import { ServiceError } from '#shared/lib/error.ts'

/**
 * A worker thread that runs one task at a time. The tasks run code of unknown cost: templates of model files, and conversions of schemas.
 *
 * The thread starts with its first task. If a task fails or times out, then the thread is terminated, and the next task starts a new thread. An
 * endless loop, or memory beyond the limit, therefore ends only the thread, and never blocks the event loop. If a caller cancels a task, then only
 * the caller stops waiting. The task continues to its end or its timeout, and later tasks wait for it. The creator of this object must close it.
 */
export class SerialThread {
  readonly #start: () => Promise<Worker>
  readonly #turn = new Semaphore({ permits: 1 })
  #worker: Worker | undefined
  #isClosed = false

  constructor(start: () => Promise<Worker>, worker?: Worker) {
    this.#start = start
    this.#worker = worker
  }

  /**
   * Runs a task after all earlier tasks.
   *
   * @throws ServiceError `overloaded` after `close`, the error of the task, or the abort reason of the signal
   */
  async run<Result>(task: (worker: Worker) => Promise<Result>, signal: AbortSignal): Promise<Result> {
    await this.#turn.take(signal)
    return await abortable(
      this.#run(task).finally(() => this.#turn.release()),
      signal,
    )
  }

  async close(): Promise<void> {
    this.#isClosed = true
    await this.#worker?.terminate()
  }

  async #run<Result>(task: (worker: Worker) => Promise<Result>): Promise<Result> {
    if (this.#isClosed) throw new ServiceError('overloaded', 'The model is being unloaded.')
    this.#worker ??= await this.#start()
    const worker = this.#worker
    try {
      return await task(worker)
    } catch (error) {
      this.#worker = undefined
      await worker.terminate()
      throw error
    }
  }
}

/** Starts a thread with a memory limit and without environment variables. The thread does not keep the process alive. */
export function startThread(url: URL, heapMb: number, options: Pick<WorkerOptions, 'workerData'> = {}): Worker {
  const resourceLimits = { maxOldGenerationSizeMb: heapMb, maxYoungGenerationSizeMb: 32, stackSizeMb: 4 }
  const worker = new Worker(url, { ...options, env: {}, resourceLimits })
  worker.unref()
  // If a thread fails between two tasks, then this event has no other listener and would end the process.
  worker.on('error', () => {})
  return worker
}

/**
 * Waits for the next message of a thread. If `task` is given, then it is sent to the thread first.
 *
 * @throws Error if the thread ends instead, or if no message arrives within `timeoutMs`
 */
export async function replyOf<Reply>(worker: Worker, timeoutMs: number, task?: object): Promise<Reply> {
  const { promise, resolve, reject } = Promise.withResolvers<Reply>()
  const onExit = () => reject(new Error('The thread ended before it replied.'))
  const timer = setTimeout(() => reject(new Error(`The thread did not reply within ${timeoutMs} ms.`)), timeoutMs)
  worker.once('message', resolve)
  worker.once('exit', onExit)
  try {
    if (task) worker.postMessage(task)
    return await promise
  } finally {
    clearTimeout(timer)
    worker.off('message', resolve).off('exit', onExit)
  }
}
