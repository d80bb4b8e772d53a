import { ServiceError } from '#shared/lib/error.ts'

/**
 * Maximum length in seconds of audio that is accepted even if the quota is used up. Dictation therefore never waits for a long recording of its
 * tenant.
 */
const SHORT_SECONDS = 60
/** Retry-After in ms: `perSecond` for each second of the tenant's audio in flight, within `min` and `max`. */
const RETRY_AFTER_MS = { perSecond: 10, min: 6_000, max: 60_000 }

export interface AudioQuotaOptions {
  /**
   * Maximum seconds of audio that one tenant may have in flight: a project, or a key without a project. 0 for no limit. A longer file is accepted if
   * no other audio of its tenant is in flight.
   */
  readonly secondsPerKey: number
  readonly secondsMax: number
}

export interface AudioReservation {
  /** Maximum length of this file in seconds: the part of the quota that the other files of its tenant leave. */
  readonly secondsMax: number
  /**
   * Reserves the decoded length.
   *
   * @throws ServiceError `rate_limit_exceeded` if other files of the tenant used the quota first
   */
  take(seconds: number): void
  refusal(): ServiceError
  leave(): void
}

/**
 * Limits the seconds of audio that each tenant has in flight in this worker, so that no tenant occupies all slots for long. The size of a file does
 * not show its cost, because hours of silence fit into a small file.
 */
export class AudioQuota {
  readonly #options: AudioQuotaOptions
  /** Seconds of each file in flight, by tenant. A file counts 0 until it is decoded, because its length is unknown before. */
  readonly #files = new Map<string, Map<AudioReservation, number>>()

  constructor(options: AudioQuotaOptions) {
    this.#options = options
  }

  /** Adds a file of a tenant. The caller must call `leave` on the result. */
  enter(tenant: string): AudioReservation {
    const files = this.#files.get(tenant) ?? new Map<AudioReservation, number>()
    const reservation: AudioReservation = {
      secondsMax: this.#secondsFor(files),
      take: (seconds) => {
        if (seconds > this.#secondsFor(files, reservation)) throw this.#refusal(files)
        files.set(reservation, seconds)
      },
      refusal: () => this.#refusal(files),
      leave: () => {
        files.delete(reservation)
        if (files.size === 0) this.#files.delete(tenant)
      },
    }
    this.#files.set(tenant, files.set(reservation, 0))
    return reservation
  }

  /**
   * Returns the maximum length of a file in seconds. A file without other files of its tenant may use `secondsMax`, even if the quota is
   * smaller.
   */
  #secondsFor(files: ReadonlyMap<AudioReservation, number>, reservation?: AudioReservation): number {
    const { secondsPerKey, secondsMax } = this.#options
    const isAlone = files.size === (reservation && files.has(reservation) ? 1 : 0)
    if (secondsPerKey === 0 || isAlone) return secondsMax
    return Math.min(secondsMax, Math.max(SHORT_SECONDS, secondsPerKey - sumOf(files)))
  }

  #refusal(files: ReadonlyMap<AudioReservation, number>): ServiceError {
    const { perSecond, min, max } = RETRY_AFTER_MS
    const inWork = Math.ceil(sumOf(files))
    const message = `This key has ${inWork} s of audio in progress on this worker; the maximum is ${this.#options.secondsPerKey} s at once. Try again later.`
    const retryAfterMs = Math.min(max, Math.max(min, perSecond * inWork))
    return new ServiceError('rate_limit_exceeded', message, { retryAfterMs })
  }
}

function sumOf(files: ReadonlyMap<AudioReservation, number>): number {
  return [...files.values()].reduce((sum, seconds) => sum + seconds, 0)
}
