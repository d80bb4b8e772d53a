import { setImmediate as nextTurn } from 'node:timers/promises'
import type { GenerateOptions } from '#shared/engines/chat.ts'
import { ServiceError } from '#shared/error.ts'
import type { Directive } from './directive.ts'

/** Tokens without a wait between them after which other work of the process gets its turn. */
const TOKENS_AT_ONCE = 128

/** The clock of one echo answer: waits before each token, counts tokens, fails when the script says so. Close it. */
export class EchoPace {
  readonly #directive: Directive
  readonly #signal: AbortSignal
  readonly #attempt: number
  #timer: NodeJS.Timeout | undefined
  #interrupt: (() => void) | undefined
  #tokens = 0

  constructor(directive: Directive, options: GenerateOptions) {
    this.#directive = directive
    this.#signal = options.signal
    this.#attempt = Number(options.idempotencyKey.split(':').at(-1)) || 1
    this.#signal.addEventListener('abort', this.#onAbort, { once: true })
  }

  /** Tokens given so far, of all choices. */
  get tokens(): number {
    return this.#tokens
  }

  /** Waits for the next token's time. @throws the abort reason, or the scripted ServiceError */
  async next(): Promise<void> {
    this.failAfter(this.#tokens)
    const waitMs = this.#tokens === 0 ? this.#directive.first_ms : this.#directive.delay_ms
    if (waitMs > 0) await this.#sleep(waitMs)
    else if (this.#tokens % TOKENS_AT_ONCE === 0) await nextTurn()
    this.#signal.throwIfAborted()
    this.#tokens++
  }

  /** Throws the scripted failure when it is due after at most so many tokens and this attempt is to fail. */
  failAfter(tokens: number): void {
    const { fail, after = 0, failures, retry_after_ms: retryAfterMs } = this.#directive
    if (fail === undefined || tokens < after || this.#attempt > failures) return
    throw new ServiceError(fail, `The echo engine was told to fail with ${fail}.`, {
      ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
    })
  }

  close(): void {
    clearTimeout(this.#timer)
    this.#signal.removeEventListener('abort', this.#onAbort)
  }

  // One abort listener for the whole answer: one a token costs more than the token.
  readonly #onAbort = () => {
    clearTimeout(this.#timer)
    this.#interrupt?.()
  }

  #sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      this.#interrupt = resolve
      if (this.#signal.aborted) resolve()
      else this.#timer = setTimeout(resolve, ms)
    })
  }
}
