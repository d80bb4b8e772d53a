import { signal } from '@preact/signals'
import { ApiFailure, eventsOf, fetchApi, messageOf } from '#services/console/api/client.ts'
import type { Call } from './call.ts'

interface Problem {
  readonly message: string
  /** Text of the remedy. Empty if the error text already contains the remedy. */
  readonly fix: string
}

const REMEDIES: Readonly<Record<number, string>> = {
  400: 'Fix the request and try again.',
  403: 'Use a key with the required permission. Operators change permissions with npx sluice keys update.',
  404: 'Choose another model, or reload the page to update the list of models.',
  408: 'The upload took too long. Try again.',
  413: 'Send a smaller request. Operators can raise the size limit.',
  422: 'Fix the request and try again.',
  429: 'Wait until the limit allows the request. Operators can raise the limits of a key.',
  500: 'If the same request fails again, run npx sluice doctor.',
  502: 'Choose another model. If the message states until when calls are paused, try again after that time.',
  503: 'Open Home to see models that are still loading and pools without a worker.',
  504: 'Request less output, or submit the request as a durable job.',
}

/** The requests of one form. At most one request is in flight. The error of the last request is kept. */
export class Run {
  readonly isBusy = signal(false)
  readonly problem = signal<Problem | undefined>(undefined)
  readonly calls = signal<readonly Call[]>([])
  /** Reason why the request waits, such as `#3 in queue, about 12 s`. Empty if the request does not wait. */
  readonly waitsFor = signal('')
  #abort = new AbortController()

  /** Cancels the request in flight, if there is one, and runs the next request to its end. */
  async start(
    calls: readonly Call[],
    work: (signal: AbortSignal) => Promise<void>,
  ): Promise<'done' | 'stopped' | 'failed'> {
    this.stop()
    const abort = new AbortController()
    this.#abort = abort
    this.calls.value = calls
    this.problem.value = undefined
    this.waitsFor.value = ''
    this.isBusy.value = true
    try {
      await work(abort.signal)
      return abort.signal.aborted ? 'stopped' : 'done'
    } catch (error) {
      if (abort.signal.aborted) return 'stopped'
      this.fail(error)
      return 'failed'
    } finally {
      if (this.#abort === abort) {
        this.isBusy.value = false
        this.waitsFor.value = ''
      }
    }
  }

  stop(): void {
    this.#abort.abort()
  }

  fail(error: unknown): void {
    const status = error instanceof ApiFailure ? error.status : 0
    this.problem.value = { message: messageOf(error), fix: REMEDIES[status] ?? '' }
  }
}

/**
 * Yields the events of a streamed response. Until the first event, `run.waitsFor` contains the reason why the request
 * waits.
 *
 * @throws ApiFailure for an error status or an error event
 */
export async function* streamed<Event>(
  { path, body }: Call,
  signal: AbortSignal,
  run: Pick<Run, 'waitsFor'>,
): AsyncGenerator<Event> {
  const response = await fetchApi(path, { method: 'POST', body, signal })
  const onComment = (text: string) => {
    if (text.trim() !== 'keep-alive') run.waitsFor.value = text.trim()
  }
  for await (const event of eventsOf(response, onComment)) {
    run.waitsFor.value = ''
    const failure = failureIn(event)
    if (failure) throw new ApiFailure(failure.status ?? 502, failure.message)
    yield event as Event
  }
}

interface Failure {
  readonly message: string
  readonly status?: number
}

/**
 * Returns the error that an event reports. A Responses event of type `error` is the error itself, and an event of type `response.failed` contains the
 * error.
 */
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
