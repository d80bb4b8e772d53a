import { setTimeout as delay } from 'node:timers/promises'
import type { ReadStream } from 'node:tty'
import { Refusal } from '#services/cli/client/refusal.ts'
import type { CommandError } from '#services/cli/failure.ts'
import type { Output } from '#services/cli/text/output.ts'
import { frameOf } from './frame.ts'
import { Screen } from './screen.ts'
import type { Reader, Snapshot } from './snapshot.ts'
import { afterKey, FIRST_VIEW, type View } from './view.ts'

/** Where and how often a live view is shown. */
export interface LiveOptions {
  readonly out: Output
  readonly input: ReadStream
  readonly url: string
  readonly intervalMs: number
}

/** Statuses of refusals that pass: too many requests for now. */
const PASSING = [429]

/**
 * Shows snapshots until somebody wants no more. A service that is away is told in the last line, below what was read last.
 *
 * @returns The signal that ended it; undefined after q
 * @throws CommandError when the service refuses the key
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
  readonly #over = new AbortController()
  #snapshot: Snapshot
  #view: View = FIRST_VIEW
  #trouble: string | undefined
  #refused: CommandError | undefined
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
      void this.#keepReading()
      while (!this.#over.signal.aborted) {
        // Taken before the frame is made: what changes while it is drawn is drawn next.
        this.#changed = Promise.withResolvers()
        // The last column stays free: clearing to the end of a line that reaches it takes its last letter away.
        const frame = { columns: out.columns - 1, rows: out.rows, view: this.#view, url, trouble: this.#trouble }
        await screen.draw(frameOf(this.#snapshot, frame))
        await this.#changed.promise
      }
    }
    if (this.#refused) throw this.#refused
    return this.#signal
  }

  /** Never throws: what goes wrong is shown, or ends the view. */
  async #keepReading(): Promise<void> {
    const { signal } = this.#over
    for (;;) {
      await delay(this.#options.intervalMs, undefined, { signal }).catch(() => {})
      if (signal.aborted) return
      try {
        this.#snapshot = await this.#reader.read()
        this.#trouble = undefined
      } catch (error) {
        if (error instanceof Refusal && error.status < 500 && !PASSING.includes(error.status)) {
          this.#refused = error
          return this.#end()
        }
        this.#trouble = `Tries again: ${error instanceof Error ? error.message : String(error)}`
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
    this.#over.abort()
    this.#changed.resolve()
  }
}
