import type { EmbedEvent } from '#schemas/embeddings.ts'
import { ServiceError } from '#shared/error.ts'
import { vectorToBase64 } from '#shared/vector.ts'

/** Characters of base64 at which a piece goes on its way: an event may have 512 KiB of JSON. */
const PIECE_CHARS = 256 * 1024

/** Gathers the vectors of one job, which come in any order, into events in the order of its inputs. */
export class Vectors {
  readonly #dimensions: number | undefined
  readonly #vectors: (string | undefined)[]
  #tokens = 0
  #count = 0
  /** Inputs before this one are in events already. */
  #told = 0

  /** @param dimensions Vectors are cut to this length and normalised again. */
  constructor(inputs: number, dimensions: number | undefined) {
    this.#vectors = new Array(inputs)
    this.#dimensions = dimensions
  }

  /** Inputs whose vectors are there. */
  get count(): number {
    return this.#count
  }

  /** @throws ServiceError `unsupported_value` when the vector is shorter than was asked for */
  put(index: number, vector: Float32Array, tokens: number): void {
    this.#vectors[index] = vectorToBase64(this.#dimensions === undefined ? vector : shorten(vector, this.#dimensions))
    this.#tokens += tokens
    this.#count++
  }

  /** Events for what is there without a gap; vectors that do not fill a piece wait, unless they are the last. */
  *take(): Generator<EmbedEvent> {
    for (;;) {
      const first = this.#told
      const vectors = this.#nextPiece()
      if (!vectors) return
      this.#told += vectors.length
      yield { type: 'vectors', first, vectors }
    }
  }

  /** The last event, when all are there. */
  usage(): EmbedEvent {
    return { type: 'usage', usage: { input_tokens: this.#tokens, output_tokens: 0 } }
  }

  #nextPiece(): string[] | undefined {
    const piece: string[] = []
    let chars = 0
    for (let at = this.#told; at < this.#vectors.length; at++) {
      const vector = this.#vectors[at]
      if (vector === undefined) break
      if (chars + vector.length > PIECE_CHARS && piece.length > 0) return this.#without(piece)
      piece.push(vector)
      chars += vector.length
    }
    const isLast = this.#told + piece.length === this.#vectors.length
    return isLast && piece.length > 0 ? this.#without(piece) : undefined
  }

  /** What is on its way is not kept here as well. */
  #without(piece: string[]): string[] {
    this.#vectors.fill(undefined, this.#told, this.#told + piece.length)
    return piece
  }
}

/** The first so many numbers, made a vector of length 1 again, as models that are trained for it want (Matryoshka). */
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
