import type { EmbedEvent } from '#schemas/embeddings.ts'
import { ServiceError } from '#shared/error.ts'
import { vectorToBase64 } from '#shared/vector.ts'

/** Maximum base64 characters of one event. An event may have 512 KiB of JSON. */
const PIECE_CHARS = 256 * 1024

/** Collects the vectors of one job, which arrive in any order, and emits them in the order of its inputs. */
export class Vectors {
  readonly #dimensions: number | undefined
  readonly #vectors: (string | undefined)[]
  #tokens = 0
  #count = 0
  /** Number of leading inputs whose vectors were emitted. */
  #emitted = 0

  /** @param dimensions Vectors are truncated to this length and normalised again. */
  constructor(inputs: number, dimensions: number | undefined) {
    this.#vectors = new Array(inputs)
    this.#dimensions = dimensions
  }

  get count(): number {
    return this.#count
  }

  /** @throws ServiceError `unsupported_value` if the vector is shorter than the requested dimensions */
  put(index: number, vector: Float32Array, tokens: number): void {
    this.#vectors[index] = vectorToBase64(this.#dimensions === undefined ? vector : shorten(vector, this.#dimensions))
    this.#tokens += tokens
    this.#count++
  }

  /** Emits the longest gapless sequence of vectors, in full pieces. A last piece may be smaller; any other incomplete piece waits. */
  *take(): Generator<EmbedEvent> {
    for (;;) {
      const first = this.#emitted
      const vectors = this.#nextPiece()
      if (!vectors) return
      this.#emitted += vectors.length
      yield { type: 'vectors', first, vectors }
    }
  }

  /** The last event of a job. Valid when all vectors have arrived. */
  usage(): EmbedEvent {
    return { type: 'usage', usage: { input_tokens: this.#tokens, output_tokens: 0 } }
  }

  #nextPiece(): string[] | undefined {
    const piece: string[] = []
    let chars = 0
    for (let at = this.#emitted; at < this.#vectors.length; at++) {
      const vector = this.#vectors[at]
      if (vector === undefined) break
      if (chars + vector.length > PIECE_CHARS && piece.length > 0) return this.#without(piece)
      piece.push(vector)
      chars += vector.length
    }
    const isLast = this.#emitted + piece.length === this.#vectors.length
    return isLast && piece.length > 0 ? this.#without(piece) : undefined
  }

  /** Emitted vectors are released here, since the event holds them. */
  #without(piece: string[]): string[] {
    this.#vectors.fill(undefined, this.#emitted, this.#emitted + piece.length)
    return piece
  }
}

/** The first `dimensions` numbers, normalised again. Models that support this are trained for it (Matryoshka embeddings). */
function shorten(vector: Float32Array, dimensions: number): Float32Array {
  if (dimensions === vector.length) return vector
  if (dimensions > vector.length) {
    const message = `Invalid 'dimensions': the vectors of this model have ${vector.length} numbers.`
    throw new ServiceError('unsupported_value', message, { param: 'dimensions' })
  }
  const short = vector.slice(0, dimensions)
  const length = Math.sqrt(short.reduce((sum, number) => sum + number * number, 0))
  return length === 0 ? short : short.map((number) => number / length)
}
