/** What one attached job waits for: its deadline, a worker, its next attempt. Clear it when the job has ended. */
export class JobTimers {
  readonly #deadline: NodeJS.Timeout
  #start: NodeJS.Timeout | undefined
  #retry: NodeJS.Timeout | undefined

  constructor(timeoutMs: number, onDeadline: () => void) {
    this.#deadline = setTimeout(onDeadline, timeoutMs)
  }

  /** Waits for a worker that starts the attempt, anew. */
  awaitStart(waitMs: number, onUnstarted: () => void): void {
    clearTimeout(this.#start)
    this.#start = setTimeout(onUnstarted, waitMs)
  }

  /** A worker has the job. */
  started(): void {
    clearTimeout(this.#start)
  }

  /** Waits until the next attempt is due. */
  awaitRetry(delayMs: number, onDue: () => void): void {
    this.#retry = setTimeout(onDue, delayMs)
  }

  clear(): void {
    clearTimeout(this.#deadline)
    clearTimeout(this.#start)
    clearTimeout(this.#retry)
  }
}
