import { FrameReader } from '#shared/sandbox/protocol/frames.ts'
import { PLOT_BYTES_MAX, PLOTS_BYTES_MAX, PLOTS_MAX } from '#shared/sandbox/protocol/limits.ts'

const PNG = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a])

/**
 * The supervisor's end of the channel to which the guest writes. The guest is the interpreter in WebAssembly. The guest first writes the verdict,
 * which is the result of the static scan of the program for forbidden operations. Plots follow.
 *
 * Both Sluice's code in the guest and the hostile program can write to the channel. Only the first verdict counts, because Sluice's code
 * writes it before the program starts. A plot must be a PNG within the limits. After an invalid frame, all further bytes are ignored.
 */
export class GuestChannel {
  readonly #reader = new FrameReader(PLOT_BYTES_MAX)
  readonly #onPlot: (png: Buffer) => void
  #violations: readonly string[] | undefined
  #plots = 0
  #plotsBytes = 0
  #isBroken = false

  constructor(onPlot: (png: Buffer) => void) {
    this.#onPlot = onPlot
  }

  get violations(): readonly string[] | undefined {
    return this.#violations
  }

  /** Adds bytes that the guest wrote. The bytes are copied, because the guest may change them after the call. */
  write(bytes: Uint8Array): void {
    if (this.#isBroken) return
    try {
      for (const { type, payload } of this.#reader.push(Buffer.from(bytes))) this.#take(type, payload)
    } catch {
      this.#isBroken = true
    }
  }

  #take(type: string, payload: Buffer): void {
    if (type === 'V') this.#violations ??= readVerdict(payload)
    else if (type === 'P' && this.#violations) this.#takePlot(payload)
    else throw new RangeError('not a frame of the guest')
  }

  #takePlot(png: Buffer): void {
    if (!png.subarray(0, PNG.length).equals(PNG)) return
    if (this.#plots >= PLOTS_MAX || this.#plotsBytes + png.length > PLOTS_BYTES_MAX) return
    this.#plots += 1
    this.#plotsBytes += png.length
    this.#onPlot(png)
  }
}

/** Parses the verdict without validation, because Sluice's own code writes it before the program starts. */
function readVerdict(payload: Buffer): string[] {
  return (JSON.parse(payload.toString()) as { violations: string[] }).violations
}
