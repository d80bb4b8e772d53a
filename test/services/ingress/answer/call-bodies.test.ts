import { expect, it } from 'vitest'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { CallBodies } from '#services/ingress/calls/call-bodies.ts'
import type { Answer } from '#shared/kinds/answer.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import { silentLog } from '../../../support/jobs/jobs.ts'

const MIB = 1024 * 1024
const answer = { whole: (events: readonly unknown[]) => ({ events: events.length }) } as unknown as Answer

function recorder() {
  const answers: (string | null)[] = []
  const bodies = { add: (row: { answer: string | null }) => answers.push(row.answer) }
  const config = { requestBodyBytesMax: MIB, requestBodiesMs: 60_000 }
  const keys = { limitsOf: () => ({}) }
  const context = { bodies, log: silentLog, config, keys } as unknown as IngressContext
  const call = { headers: {}, requestId: 'req_1', key: { id: 'key_1' } } as unknown as Call
  const open = (hasAnswer = true) =>
    CallBodies.of(context, call, { merge: () => undefined } as unknown as Kind, { body: {}, hasAnswer })
  return { open, answers }
}

it('the request log records no binary answers', async () => {
  const { open, answers } = recorder()
  const speech = open(false)
  speech?.see({ audio: 'x' })
  await speech?.end('completed', answer, {} as never)
  expect(answers).toEqual([null])
})

it('the request log records no answer of a further call while the recorded answers of running calls use 64 MiB', async () => {
  const { open, answers } = recorder()
  const event = { text: 'x'.repeat(15 * MIB) }
  const calls = Array.from({ length: 5 }, () => open())
  for (const call of calls) call?.see(event)
  for (const call of calls) await call?.end('completed', answer, {} as never)
  expect(answers).toEqual([...Array.from({ length: 4 }, () => '{"events":1}'), null])
  const later = open()
  later?.see(event)
  await later?.end('completed', answer, {} as never)
  expect(answers.at(-1)).toBe('{"events":1}')
})
