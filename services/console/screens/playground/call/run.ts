import { signal } from '@preact/signals'
import { ApiFailure, ask, wordsOf } from '#services/console/api/client.ts'
import { eventsOf } from '#services/console/api/events.ts'
import type { Call } from './call.ts'

/** What went wrong, and what to do about it. */
export interface Problem {
  readonly words: string
  /** Empty where the words say it. */
  readonly next: string
}

/** What somebody who reads a refusal does next, by its status. */
const NEXT: Readonly<Record<number, string>> = {
  400: 'Change what it names, and send it again.',
  403: 'Ask an operator for a key that may: sluice keys update lists and changes what a key is for.',
  404: 'Choose another model, or reload the page: what is served may have changed.',
  408: 'The connection was slow. Send it again.',
  413: 'Send less at once. Operators set the bound.',
  422: 'Change what it names, and send it again.',
  429: 'Wait a little, and send it again. Operators set the limits of a key.',
  500: 'Send it again. If it stays so, npx sluice doctor checks every part.',
  502: 'Send it again, or choose another model. If it stays so, npx sluice doctor checks every part.',
  503: 'Home shows what is still being prepared, and which pool has no worker.',
  504: 'Send it again, ask for less, or submit it as a job.',
}

/** One call of a form after another: whether one is under way, why the last failed, and how to make it elsewhere. */
export class Run {
  readonly isBusy = signal(false)
  readonly problem = signal<Problem | undefined>(undefined)
  /** What was asked for last. */
  readonly calls = signal<readonly Call[]>([])
  #abort = new AbortController()

  /** Works until that has ended, failed or was stopped. One that is under way is stopped first. */
  async start(
    calls: readonly Call[],
    work: (signal: AbortSignal) => Promise<void>,
  ): Promise<'done' | 'stopped' | 'failed'> {
    this.stop()
    const abort = new AbortController()
    this.#abort = abort
    this.calls.value = calls
    this.problem.value = undefined
    this.isBusy.value = true
    try {
      await work(abort.signal)
      return abort.signal.aborted ? 'stopped' : 'done'
    } catch (error) {
      if (abort.signal.aborted) return 'stopped'
      this.fail(error)
      return 'failed'
    } finally {
      if (this.#abort === abort) this.isBusy.value = false
    }
  }

  /** Closes the connection, which stops the work wherever it is. */
  stop(): void {
    this.#abort.abort()
  }

  /** Says what went wrong. */
  fail(error: unknown): void {
    const status = error instanceof ApiFailure ? error.status : 0
    this.problem.value = { words: wordsOf(error), next: NEXT[status] ?? '' }
  }
}

/** The events of a call whose answer is a stream. @throws ApiFailure for a failure, also where the stream had begun */
export async function* streamed<Event>({ path, body }: Call, signal: AbortSignal): AsyncGenerator<Event> {
  const response = await ask(path, { method: 'POST', body, signal })
  for await (const event of eventsOf(response)) {
    const failure = failureIn(event)
    if (failure) throw new ApiFailure(failure.status ?? 502, failure.message)
    yield event as Event
  }
}

interface Failure {
  readonly message: string
  readonly status?: number
}

/** Why a stream ends early: as `error` of an event; in the format of responses as the event itself, or in the response that failed. */
function failureIn(event: object): Failure | undefined {
  const { type, message, error, response } = event as {
    readonly type?: string
    readonly message?: string
    readonly error?: Failure
    readonly response?: { readonly error?: Failure | null }
  }
  if (error) return error
  if (type === 'error') return { message: message ?? 'The stream ended with an error.' }
  return type === 'response.failed' ? (response?.error ?? { message: 'The response failed.' }) : undefined
}
