import { setTimeout as delay } from 'node:timers/promises'
import type { ReadStream } from 'node:tty'
import { ApiError } from '#services/cli/client/api-error.ts'
import type { CommandError } from '#services/cli/failure.ts'
import type { Output } from '#services/cli/text/output.ts'
import { frameOf } from './frame.ts'
import { Screen } from './screen.ts'
import type { Reader, Snapshot } from './snapshot.ts'
import { afterKey, FIRST_VIEW, type View } from './view.ts'

export interface LiveOptions {
  readonly out: Output
  readonly input: ReadStream
  readonly url: string
  readonly intervalMs: number
}

/** Client errors that are retried: the rate limit. */
const RETRYABLE_STATUSES = [429]

/**
 * Shows snapshots until the user quits. While the service is unreachable, the view keeps the last snapshot and shows the error in
 * the last line.
 *
 * @returns The signal that ended the view; undefined after q
 * @throws CommandError if the service rejects the key
 */
export async function showLive(
  reader: Reader,
  first: Snapshot,
  options: LiveOptions,
): Promise<NodeJS.Signals | undefined> {
  return await new Live(reader, first, options).run()
}

class Live {
  readonly #reader: Reader
  readonly #options: LiveOptions
  readonly #stop = new AbortController()
  #snapshot: Snapshot
  #view: View = FIRST_VIEW
  #readError: string | undefined
  #rejection: CommandError | undefined
  #signal: NodeJS.Signals | undefined
  #changed = Promise.withResolvers<void>()

  constructor(reader: Reader, first: Snapshot, options: LiveOptions) {
    this.#reader = reader
    this.#snapshot = first
    this.#options = options
  }

  async run(): Promise<NodeJS.Signals | undefined> {
    const { out, input, url } = this.#options
    {
      using screen = new Screen(out, input, {
        onKey: (name) => this.#onKey(name),
        onResize: () => this.#changed.resolve(),
        onSignal: (signal) => {
          this.#signal = signal
          this.#end()
        },
      })
      void this.#readPeriodically()
      while (!this.#stop.signal.aborted) {
        // Replaced before drawing, so that a change during the drawing causes another frame.
        this.#changed = Promise.withResolvers()
        // The last column stays empty: "clear to end of line" would erase a character in it.
        const frame = { columns: out.columns - 1, rows: out.rows, view: this.#view, url, readError: this.#readError }
        await screen.draw(frameOf(this.#snapshot, frame))
        await this.#changed.promise
      }
    }
    if (this.#rejection) throw this.#rejection
    return this.#signal
  }

  /** Never throws: an error is displayed, or ends the view. */
  async #readPeriodically(): Promise<void> {
    const { signal } = this.#stop
    for (;;) {
      await delay(this.#options.intervalMs, undefined, { signal }).catch(() => {})
      if (signal.aborted) return
      try {
        this.#snapshot = await this.#reader.read()
        this.#readError = undefined
      } catch (error) {
        if (error instanceof ApiError && error.status < 500 && !RETRYABLE_STATUSES.includes(error.status)) {
          this.#rejection = error
          return this.#end()
        }
        this.#readError = `Retrying: ${error instanceof Error ? error.message : String(error)}`
      }
      this.#changed.resolve()
    }
  }

  #onKey(name: string): void {
    if (name === 'q') return this.#end()
    this.#view = afterKey(this.#view, name, this.#snapshot.jobs?.length ?? 0)
    this.#changed.resolve()
  }

  #end(): void {
    this.#stop.abort()
    this.#changed.resolve()
  }
}
