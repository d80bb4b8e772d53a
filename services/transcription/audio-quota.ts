import { ServiceError } from '#shared/error.ts'

/** Audio that is always taken, in seconds: what somebody says into a microphone waits for no recording of the same key. */
const SHORT_SECONDS = 60
/** When to come again, by how many seconds of the key's audio are in work. */
const RETRY_AFTER_MS = { perSecond: 10, min: 6_000, max: 60_000 }

/** What the share depends on. */
export interface AudioShareOptions {
  /** Seconds of audio that one key may have in work at once; 0: any number. One file alone may be longer. */
  readonly secondsPerKey: number
  /** Longest audio, in seconds. */
  readonly secondsMax: number
}

/** One file on its way through a worker. */
export interface AudioPlace {
  /** Seconds that it may last: what is longer has to wait, or is too long for anybody. */
  readonly room: number
  /** It was found to last so long. @throws ServiceError `rate_limit_exceeded` when others of its key came first */
  take(seconds: number): void
  /** It has to wait. */
  refusal(): ServiceError
  /** The work on it has ended. */
  leave(): void
}

/**
 * How much audio this worker has in work for each key: hours of silence fit into a small file, and take a slot for minutes.
 * So no key can have all slots for long, however many files it sends.
 */
export class AudioQuota {
  readonly #options: AudioShareOptions
  /** Of each tenant the seconds of its files here; 0 while one is decoded, which tells how long it is. */
  readonly #files = new Map<string, Map<AudioPlace, number>>()

  constructor(options: AudioShareOptions) {
    this.#options = options
  }

  /** A file of a key comes in. The caller leaves. */
  enter(tenant: string): AudioPlace {
    const files = this.#files.get(tenant) ?? new Map<AudioPlace, number>()
    const place: AudioPlace = {
      room: this.#room(files),
      take: (seconds) => {
        if (seconds > this.#room(files, place)) throw this.#refusal(files)
        files.set(place, seconds)
      },
      refusal: () => this.#refusal(files),
      leave: () => {
        files.delete(place)
        if (files.size === 0) this.#files.delete(tenant)
      },
    }
    this.#files.set(tenant, files.set(place, 0))
    return place
  }

  /** What is left beside the other files: all for one that is alone. */
  #room(files: ReadonlyMap<AudioPlace, number>, place?: AudioPlace): number {
    const { secondsPerKey, secondsMax } = this.#options
    const isAlone = files.size === (place && files.has(place) ? 1 : 0)
    if (secondsPerKey === 0 || isAlone) return secondsMax
    return Math.min(secondsMax, Math.max(SHORT_SECONDS, secondsPerKey - sumOf(files)))
  }

  #refusal(files: ReadonlyMap<AudioPlace, number>): ServiceError {
    const { perSecond, min, max } = RETRY_AFTER_MS
    const inWork = Math.ceil(sumOf(files))
    const message = `This key has ${inWork} s of audio in work here, and may have ${this.#options.secondsPerKey} s at once. Try again later.`
    const retryAfterMs = Math.min(max, Math.max(min, perSecond * inWork))
    return new ServiceError('rate_limit_exceeded', message, { retryAfterMs })
  }
}

function sumOf(files: ReadonlyMap<AudioPlace, number>): number {
  return [...files.values()].reduce((sum, seconds) => sum + seconds, 0)
}
