/** A queue of durable jobs under measurement, as its callers and workers use it: Sluice, or what it is compared with. */
export interface JobSystem {
  /** Submits {@link PAYLOAD}. @returns The job's id, once the job is on disk. */
  submit(): Promise<string>
  /** Resolves once a job has been completed and that is on disk. */
  completed(id: string): Promise<void>
  /** Starts the workers, which do nothing before; {@link WORKERS} jobs run at once. @param isWatched Somebody is going to wait for `completed`. */
  startWork(isWatched: boolean): Promise<void>
  /** Resolves once every job that was submitted has been completed. The workers run. */
  drained(): Promise<void>
  stopWork(): Promise<void>
  close(): Promise<void>
}

/** Jobs that the workers of one system run at once. */
export const WORKERS = 32

/** What each job carries: a short conversation, some 400 bytes of JSON. */
export const PAYLOAD = {
  model: 'echo-1',
  messages: [
    { role: 'system', content: 'You are a helpful assistant. Answer in full sentences, and keep it short.' },
    { role: 'user', content: 'What is the capital of France, and what is it known for? Name three things.' },
  ],
  temperature: 0.7,
  max_tokens: 128,
}

/** What each job gives. */
export const RESULT = { text: 'The capital of France is Paris. It is known for its museums, its food and its tower.' }

/** Counts jobs, so that somebody can wait until as many have ended as were begun. */
export class Tally {
  #open = 0
  readonly #waiting: (() => void)[] = []

  begin(): void {
    this.#open++
  }

  end(): void {
    this.#open--
    if (this.#open === 0) for (const wake of this.#waiting.splice(0)) wake()
  }

  /** Resolves when nothing is open. */
  async settled(): Promise<void> {
    if (this.#open > 0) await new Promise<void>((resolve) => this.#waiting.push(resolve))
  }
}
