export interface JobSystem {
  /** Submits {@link PAYLOAD}. @returns The id of the job, as soon as the job is on disk */
  submit(): Promise<string>
  /** Resolves when the job is completed and its result is on disk. */
  completed(id: string): Promise<void>
  /** Starts workers that run {@link CONCURRENCY} jobs at the same time. @param isAwaited Whether `completed` will be called */
  startWork(isAwaited: boolean): Promise<void>
  /** Resolves when all submitted jobs are completed. The workers must be running. */
  drained(): Promise<void>
  stopWork(): Promise<void>
  close(): Promise<void>
}

export const CONCURRENCY = 32

/** The body of each job, about 400 bytes of JSON. */
export const PAYLOAD = {
  model: 'echo-1',
  messages: [
    { role: 'system', content: 'You are a helpful assistant. Answer in full sentences, and keep it short.' },
    { role: 'user', content: 'What is the capital of France, and what is it known for? Name three things.' },
  ],
  temperature: 0.7,
  max_tokens: 128,
}

export const RESULT = { text: 'The capital of France is Paris. It is known for its museums, its food and its tower.' }

export class OpenJobs {
  #count = 0
  readonly #waiting: (() => void)[] = []

  begin(): void {
    this.#count++
  }

  end(): void {
    this.#count--
    if (this.#count === 0) for (const resolve of this.#waiting.splice(0)) resolve()
  }

  async drained(): Promise<void> {
    if (this.#count > 0) await new Promise<void>((resolve) => this.#waiting.push(resolve))
  }
}
