import fc from 'fast-check'
import { expect, it } from 'vitest'
import type { EmbedEvent } from '#schemas/kinds/embeddings.ts'
import { encodeEmbeddings, mergeEmbedEvents, writeEmbeddings } from '#shared/kinds/embed/embed.ts'
import { EventBuffer } from '#shared/lib/buffers.ts'
import { shortNumbers, vectorFromBase64, vectorToBase64 } from '#shared/lib/vector.ts'

const Vector = fc.float32Array({ minLength: 1, maxLength: 40, noNaN: true, noDefaultInfinity: true })

it('a float32 vector is unchanged after conversion to base64 or numbers and back', () => {
  fc.assert(
    fc.property(Vector, (vector) => {
      const numbers = JSON.parse(JSON.stringify(shortNumbers(vector))) as number[]
      // JSON has no negative zero. Adding 0 turns a negative zero of the original vector into 0.
      expect(Float32Array.from(numbers)).toEqual(vector.map((number) => number + 0))
      expect(vectorFromBase64(vectorToBase64(vector))).toEqual(vector)
    }),
  )
})

it('numbers of a vector have no more digits than float32 needs', () => {
  const vector = Float32Array.of(0.1, -0.25, 0.0123, 0.000456, 1 / 3, 0, 1)
  expect(JSON.stringify(shortNumbers(vector))).toBe('[0.1,-0.25,0.0123,0.000456,0.33333334,0,1]')
})

const CONTEXT = { request_id: 'req_1', call_id: '1', created_at: 0, model: 'e1', include_usage: true, version: '' }
const USAGE: EmbedEvent = { type: 'usage', usage: { input_tokens: 3, output_tokens: 0 } }

it('an embeddings response does not depend on how its events were divided and merged', () => {
  fc.assert(
    fc.property(
      fc.array(Vector, { minLength: 1 }),
      fc.infiniteStream(fc.integer({ min: 1, max: 3 })),
      (vectors, cuts) => {
        const buffer = new EventBuffer(mergeEmbedEvents)
        for (let first = 0; first < vectors.length; ) {
          const piece = vectors.slice(first, first + cuts.next().value).map(vectorToBase64)
          buffer.push({ type: 'vectors', first, vectors: piece })
          first += piece.length
        }
        buffer.push(USAGE)
        const answer = encodeEmbeddings(buffer.takeAll() as EmbedEvent[], { ...CONTEXT, encoding_format: 'base64' })
        const data = vectors.map((vector, index) => ({ object: 'embedding', index, embedding: vectorToBase64(vector) }))
        expect(answer).toMatchObject({ data, usage: { prompt_tokens: 3, total_tokens: 3 } })
      },
    ),
  )
})

it.each([
  ['vectors', [USAGE]],
  ['usage', [{ type: 'vectors', first: 0, vectors: ['AACAPw=='] }]],
  ['the first vectors', [{ type: 'vectors', first: 1, vectors: ['AACAPw=='] }, USAGE]],
])('an embeddings response without %s is reported as a failure', (_, events) => {
  expect(() => encodeEmbeddings(events as EmbedEvent[], CONTEXT)).toThrow(/stopped before/)
})

it('an embeddings response is unchanged if it is written in pieces, in both encoding formats', async () => {
  const vectors = Array.from({ length: 300 }, (_, i) => vectorToBase64(Float32Array.of(i / 7, -0.1, 1e-9)))
  const events: EmbedEvent[] = [{ type: 'vectors', first: 0, vectors }, USAGE]
  for (const encoding_format of ['float', 'base64'] as const) {
    const context = { ...CONTEXT, encoding_format }
    const { text } = await writeEmbeddings(events, context)
    expect(text).toBe(JSON.stringify(encodeEmbeddings(events, context)))
  }
})
