import { ServiceError } from '#shared/lib/error.ts'

/** Name of the code sandbox in reports of progress ({@link Preparations.report}). */
export const SANDBOX_RESOURCE = 'the sandbox for code'
/** Name of the local model server in reports of progress. The server runs models for speech and embeddings. */
export const LOCAL_SERVER_RESOURCE = 'speech and embeddings'

export interface PreparationStep {
  /** Progress of the preparation, as a fraction from 0 to 1. */
  readonly fraction: number
  readonly message: string
}

/**
 * Progress of all downloads and builds of this process, by resource. A resource is a model id, or one of the names above.
 *
 * Readiness checks and metrics read the progress here. Workers publish it with their capacity, so that an ingress can send it to waiting callers.
 * When the process stops, {@link stopping} ends all downloads, builds and waits at once.
 */
export class Preparations {
  readonly #steps = new Map<string, PreparationStep>()
  readonly #listeners = new Set<() => void>()
  readonly #stop = new AbortController()
  readonly stopping = this.#stop.signal

  report(resource: string, fraction: number, message: string): void {
    const before = this.#steps.get(resource)
    this.#steps.set(resource, { fraction, message })
    if (!before || before.fraction < 1 !== fraction < 1) for (const listener of this.#listeners) listener()
  }

  /** Returns the progress of a resource from 0 to 1. Undefined if its preparation was never reported. */
  fractionOf(resource: string): number | undefined {
    return this.#steps.get(resource)?.fraction
  }

  stepOf(resource: string): PreparationStep | undefined {
    const step = this.#steps.get(resource)
    return step && step.fraction < 1 ? step : undefined
  }

  /** Resources that are not ready yet, with their progress. */
  running(): (readonly [resource: string, step: PreparationStep])[] {
    return [...this.#steps].filter(([, { fraction }]) => fraction < 1)
  }

  /**
   * Calls the listener when the preparation of a resource starts or ends.
   *
   * @returns Function that ends the subscription
   */
  onChange(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  stop(): void {
    this.#stop.abort(
      new ServiceError('overloaded', 'The worker is shutting down.', { retryAfterMs: 1_000, reason: 'draining' }),
    )
  }
}
