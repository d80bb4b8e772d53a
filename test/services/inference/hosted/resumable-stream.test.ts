/*
 * Tests of model output that is streamed over several attempts: a worker dies while it streams, and the next attempt runs the model again.
 * Callers must receive no text twice (docs/internals/design.md, Composed jobs).
 */

import { expect, it } from 'vitest'
import type { GenerateEvent } from '#schemas/kinds/generate.ts'
import { OutputBuffer } from '#services/inference/hosted/hosted.ts'
import { ResumableStream } from '#services/inference/hosted/resumable-stream.ts'
import type { Composition } from '#shared/kinds/composition.ts'

const text = (said: string): GenerateEvent => ({ type: 'text', choice: 0, text: said })
const START: GenerateEvent = { type: 'start', model: 'm', input_tokens: 3 }
const CUT: GenerateEvent = { type: 'cut', choice: 0 }

/** Simulates the store of published events, which outlives an attempt. An event whose key is already stored is ignored. */
class Record {
  readonly kept = new Map<string, readonly unknown[]>()

  get composition(): Composition {
    const told = async (key: string) => this.kept.get(key)
    const tellKept = async (key: string, events: readonly unknown[]) => {
      if (!this.kept.has(key)) this.kept.set(key, structuredClone(events))
    }
    return { published: told, publishStored: tellKept } as Partial<Composition> as Composition
  }

  get told(): unknown[] {
    return [...this.kept.values()].flat()
  }
}

/** Simulates one attempt, which receives the events in `said` 120 ms apart. Returns the events that are not published yet. */
async function attempt(record: Record, said: readonly GenerateEvent[], at = 0): Promise<GenerateEvent[]> {
  const round = await ResumableStream.begin(record.composition, at, { pieces: 0 })
  for (const event of said) {
    await round.receive(event)
    await new Promise((resolve) => setTimeout(resolve, 120))
  }
  return round.rest(said)
}

it('a resumable stream repeats no word if the next attempt generates equal text in other pieces', async () => {
  const record = new Record()
  await attempt(record, [START, text('The her'), text('on bui')])
  expect(record.told).toEqual([START, text('The her'), text('on bui')])
  const rest = await attempt(record, [START, text('The'), text(' heron builds'), text(' nests.')])
  const all = [...record.told, ...rest]
  expect(all.map((event) => ('text' in (event as object) ? (event as { text: string }).text : ''))).toEqual([
    ...['', 'The her', 'on bui', 'lds', ' nests.'],
  ])
})

it('a resumable stream resets its output if the next attempt generates other text, then streams that text', async () => {
  const record = new Record()
  await attempt(record, [START, text('The heron')])
  await attempt(record, [START, text('The '), text('owl')])
  expect(record.told).toEqual([START, text('The heron'), CUT, text('The owl')])
  const rest = await attempt(record, [START, text('The owl hunts.')])
  expect([...record.told, ...rest]).toEqual([START, text('The heron'), CUT, text('The owl'), text(' hunts.')])
})

it('a resumable stream resets its output if the sent text is longer than the final text', async () => {
  const record = new Record()
  await attempt(record, [START, text('The heron')])
  expect(await attempt(record, [START, text('The')])).toEqual([CUT, text('The')])
})

it('a resumable stream sends the part of a completed model call that the failed attempt had not sent', async () => {
  const record = new Record()
  const thought: GenerateEvent = { type: 'reasoning', choice: 0, text: 'Hm', signature: 'sig' }
  await attempt(record, [START, { type: 'reasoning', choice: 0, text: 'Hm' }])
  const round = await ResumableStream.begin(record.composition, 0, { pieces: 0 })
  expect(round.rest([START, thought, text('Yes.')])).toEqual([{ ...thought, text: '' }, text('Yes.')])
  expect(record.kept.size).toBe(1)
})

it('a resumable stream refuses a model call whose text exceeds the size limit of a stored step', () => {
  const spoken = new OutputBuffer()
  const say = () => spoken.push(text('\u0001'.repeat(16 * 1024)))
  for (let n = 0; n < 10; n++) say()
  const tooMuch = expect.objectContaining({
    code: 'answer_too_large',
    message: expect.stringContaining('one model call'),
  })
  expect(say).toThrow(tooMuch)
})
