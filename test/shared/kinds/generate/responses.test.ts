import { expect, test } from 'vitest'
import { EncodeContext } from '#schemas/job.ts'
import type { GenerateEvent } from '#schemas/kinds/generate.ts'
import { responsesAnswer } from '#shared/kinds/generate/responses/stream.ts'
import { cpuMs } from '../../../support/loop-hold.ts'

const CONTEXT = EncodeContext.parse({
  ...{ request_id: 'req_1', call_id: 'call1', created_at: 1, model: 'm1', include_usage: false, version: '' },
})
const PARTS = 20_000

test('the Responses API encoder takes linear time for a reasoning summary with 20,000 parts', async () => {
  const events: GenerateEvent[] = Array.from({ length: PARTS }, (_, summary) => {
    return { type: 'reasoning', choice: 0, text: '\n\nHm.', summary }
  })
  events.push({ type: 'finish', choice: 0, reason: 'stop' })
  const startedAtMs = cpuMs()
  const response = await responsesAnswer.whole(events, CONTEXT)
  const { output } = response as { output: { summary: { text: string }[] }[] }
  // The limit detects quadratic work: copying all earlier parts for each new part would take 2.3 s.
  expect(cpuMs() - startedAtMs).toBeLessThan(500)
  expect(output[0]?.summary).toHaveLength(PARTS)
  expect(output[0]?.summary.at(-1)).toEqual({ type: 'summary_text', text: 'Hm.' })
})
