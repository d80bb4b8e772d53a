import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { StopFilter } from '#shared/engines/stop.ts'
import { cpuMs } from '../../support/loop-hold.ts'
import { startStack } from '../../support/stack.ts'

describe('the stop-string filter', () => {
  test('takes equal time per character with stop strings of 50 and of 50,000 characters', () => {
    const costMs = (pairs: number) => {
      const stops = Array.from({ length: 5 }, (_, index) => `${'ab'.repeat(pairs + index)}c`)
      const startedMs = cpuMs()
      const stopping = new StopFilter(stops)
      for (let piece = 0; piece < 200_000; piece++) stopping.push(piece % 50_001 === 0 ? 'b' : ('ab'[piece % 2] ?? ''))
      return cpuMs() - startedMs
    }
    const short = costMs(25)
    // The text is a thousand times as long as the short one. If all earlier text were searched again for each piece, then the cost would be a
    // million times as high.
    expect(costMs(25_000)).toBeLessThan(200 * Math.max(short, 20))
  })

  test('buffers only text that may begin a stop string', () => {
    const unit = fc.constantFrom('a', 'b')
    const words = fc.array(fc.string({ unit, minLength: 1, maxLength: 6 }), { minLength: 1, maxLength: 4 })
    fc.assert(
      fc.property(fc.string({ unit, maxLength: 40 }), words, (text, stops) => {
        const stopping = new StopFilter(stops)
        let shown = ''
        for (const [index, piece] of [...text].entries()) {
          const { text: released, hit } = stopping.push(piece)
          shown += released
          if (hit !== undefined) return
          const held = text.slice(shown.length, index + 1)
          expect(held === '' || stops.some((stop) => stop.startsWith(held))).toBe(true)
        }
        expect(shown + stopping.flush().text).toBe(text)
      }),
    )
  })
})

describe('a stop string', () => {
  test('of more than 1,000 characters is refused with status 400 by chat completions and messages', async () => {
    await using stack = await startStack()
    const messages = [{ role: 'user', content: 'Hi' }]
    const stop = 'x'.repeat(1_001)
    const chat = await stack.post('/v1/chat/completions', { model: 'echo-1', messages, stop: ['ok', stop] })
    expect([chat.status, await chat.json()]).toMatchObject([
      400,
      { error: { code: 'string_above_max_length', param: 'stop[1]' } },
    ])
    const body = { model: 'echo-1', messages, max_tokens: 5, stop_sequences: [stop] }
    const message = await stack.post('/v1/messages', body)
    expect([message.status, await message.json()]).toMatchObject([
      400,
      { error: { message: expect.stringContaining('stop_sequences.0') } },
    ])
  })
})
