import type { Worker } from 'node:worker_threads'

/**
 * The next message of a thread.
 *
 * @param task Message to send first
 * @throws Error if the thread ends instead, or takes too long
 */
export async function replyOf<Reply>(worker: Worker, timeoutMs: number, task?: object): Promise<Reply> {
  const { promise, resolve, reject } = Promise.withResolvers<Reply>()
  const onExit = () => reject(new Error('The thread ended.'))
  const timer = setTimeout(() => reject(new Error('The thread took too long.')), timeoutMs)
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
