import type { ServerResponse } from 'node:http'
import type { ApiKey, ApiKeys } from './keys.ts'

/** How long a caller whose key was revoked may take to read why, before the connection is cut. */
const LAST_WORDS_MS = 2_000

/**
 * Watches the key of one call. When it is revoked everything that waits or streams for the call hears of it, and ends in the
 * words of its protocol; whatever does not end, or is not read, is cut.
 */
export class Revocation {
  readonly #res: ServerResponse
  readonly #revoked = new AbortController()
  readonly #unwatch: () => void

  constructor(keys: ApiKeys, key: ApiKey, res: ServerResponse) {
    this.#res = res
    this.#unwatch = keys.watch(key, (error) => {
      this.#revoked.abort(error)
      setTimeout(() => res.destroy(), LAST_WORDS_MS).unref()
    })
  }

  /** Its reason is the ServiceError for the caller. */
  get signal(): AbortSignal {
    return this.#revoked.signal
  }

  /** The call was answered, as far as that is up to us: what is left is watched until it is sent. */
  end(): void {
    const { socket, destroyed } = this.#res
    // Without a socket it is sent, or waits behind an earlier answer, and would never tell that it is closed.
    if (!socket || destroyed) this.#unwatch()
    else this.#res.once('close', this.#unwatch)
  }
}
