import type { Extension, ExtensionTools } from '../../shared/ports/extensions.ts'

/*
 * A kind of job outside of Sluice: `POST /v1/shout` returns a text in capitals, word by word if `stream` is true.
 *
 *   EXTENSIONS=examples/custom-kind/shout.ts npm start
 */

interface ShoutRequest {
  readonly text: string
}

interface ShoutEvent {
  readonly word: string
}

export const extension = ({ z, ServiceError }: ExtensionTools): Extension<ShoutRequest, ShoutEvent> => ({
  name: 'shout',
  pool: 'code',
  path: '/v1/shout',
  summary: 'Return a text in capitals',
  request: z.strictObject({ text: z.string().max(10_000).describe('The text') }),
  result: z.object({ object: z.literal('shout'), text: z.string() }),

  /** Runs one job, in a worker of the pool. */
  async *run({ text }, { signal }) {
    const words = text.split(/\s+/).filter((word) => word !== '')
    if (words.length === 0) throw new ServiceError('invalid_value', 'The text has no words.', { param: 'text' })
    for (const word of words) {
      signal.throwIfAborted()
      yield { word: word.toUpperCase() }
    }
  },

  merge: () => undefined,
  isOutput: () => true,
  answer: () => ({
    whole: (events) => ({ object: 'shout', text: events.map(({ word }) => word).join(' ') }),
    open: () => ({
      push: (event) => [{ data: JSON.stringify(event) }],
      end: () => [],
    }),
  }),
})
