import { z } from 'zod'
import type { Embedded } from '#shared/engines/embedding.ts'
import { ServiceError } from '#shared/error.ts'
import { vectorFromBase64 } from '#shared/vector.ts'

/** The fields of an answer that are read. Servers add many others, and some omit `index` or `usage`. */
const Answer = z.object({
  data: z.array(
    z.object({
      index: z.int().min(0).optional(),
      embedding: z.unknown(),
      tokens: z.int().min(0).optional().describe('Tokens of this text, from the local model server'),
    }),
  ),
  usage: z
    .object({ prompt_tokens: z.int().min(0).optional(), total_tokens: z.int().min(0).optional() })
    .nullish()
    .catch(undefined),
})
type Entry = z.infer<typeof Answer>['data'][number]

/**
 * Reads the answer of a server with OpenAI's API: vectors as base64 or as numbers, in any order. Run it by `runYielding`.
 *
 * @throws ServiceError `upstream_error` unless there is one vector per text. `param` is the text with the bad vector, or `input`, because
 * one text may have spoilt the whole answer.
 */
export function* decodeEmbeddings(
  model: string,
  body: Record<string, unknown>,
  count: number,
): Generator<undefined, Embedded> {
  // Checked before any entry is parsed, because there may be a million.
  if (Array.isArray(body.data) && body.data.length !== count) throw wrongCount(model, count)
  const { data: answer } = Answer.safeParse(body)
  if (!answer) throw unusable(model, 'sent an answer of an unknown shape')
  const entries = inOrder(answer.data, count)
  if (!entries) throw wrongCount(model, count)
  const vectors: Float32Array[] = []
  for (const [place, { embedding }] of entries.entries()) {
    vectors.push(vectorOf(model, embedding, `input[${place}]`))
    yield
  }
  const size = vectors[0]?.length
  if (vectors.some((vector) => vector.length !== size)) throw unusable(model, 'gave vectors of several lengths')
  const each = entries.map(({ tokens }) => tokens).filter((tokens) => tokens !== undefined)
  return {
    vectors,
    tokens: answer.usage?.prompt_tokens ?? answer.usage?.total_tokens,
    tokensEach: each.length === count ? each : undefined,
  }
}

/** The entries by index, else in order of arrival; undefined unless each index occurs once. */
function inOrder(data: readonly Entry[], count: number): Entry[] | undefined {
  const entries = new Array<Entry>(count)
  for (const [place, entry] of data.entries()) {
    const index = entry.index ?? place
    if (index >= count || entries[index]) return undefined
    entries[index] = entry
  }
  return data.length === count ? entries : undefined
}

function vectorOf(model: string, embedding: unknown, param: string): Float32Array {
  const vector = typeof embedding === 'string' ? vectorFromBase64(embedding) : vectorFromNumbers(embedding)
  if (!vector || vector.length === 0) throw unusable(model, 'gave a vector that cannot be read', param)
  // Infinity and NaN have no JSON form and no distance to other vectors. Models in half precision overflow to them.
  if (!vector.every(Number.isFinite)) throw unusable(model, 'gave a vector with numbers that are not finite', param)
  return vector
}

/** Checked without a schema, which would take longer than all other work on an answer. */
function vectorFromNumbers(embedding: unknown): Float32Array | undefined {
  if (!Array.isArray(embedding) || !embedding.every((number) => typeof number === 'number')) return undefined
  return Float32Array.from(embedding)
}

function wrongCount(model: string, count: number): ServiceError {
  return unusable(model, `did not give one vector for each of ${count} texts`)
}

function unusable(model: string, what: string, param = 'input'): ServiceError {
  return new ServiceError('upstream_error', `The upstream of model '${model}' ${what}.`, { param })
}
