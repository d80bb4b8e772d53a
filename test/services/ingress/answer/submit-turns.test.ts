import { expect, it } from 'vitest'
import { SubmitTurns } from '#services/ingress/answer/submit-turns.ts'
import { until } from '../../../support/stack.ts'

/** Submits of durable jobs take turns while other projects call (docs/guides/jobs.md, Limits). */

const never = new AbortController().signal

/** Submits that run until they are let go. */
function openSubmits(turns: SubmitTurns) {
  const begun: string[] = []
  const ends: (() => void)[] = []
  const submit = (project: string, signal = never) =>
    turns.take(
      project,
      async () => {
        begun.push(project)
        await new Promise<void>((resolve) => ends.push(resolve))
      },
      signal,
    )
  return { begun, submit, end: () => ends.shift()?.() }
}

it('take none while no other project calls', async () => {
  const turns = new SubmitTurns()
  turns.noteCall('a')
  const { begun, submit } = openSubmits(turns)
  for (let nth = 0; nth < 50; nth++) void submit('a')
  await until(() => begun.length === 50)
})

it('run few at once beside calls of others, and projects in turn however many each has waiting', async () => {
  const turns = new SubmitTurns()
  turns.noteCall('caller')
  const { begun, submit, end } = openSubmits(turns)
  for (let nth = 0; nth < 20; nth++) void submit('many')
  void submit('few')
  void submit('few')
  await new Promise((resolve) => setImmediate(resolve))
  expect(begun).toEqual(['many', 'many'])
  for (let nth = 3; nth <= 8; nth++) {
    end()
    await until(() => begun.length === nth)
  }
  expect(begun).toEqual(['many', 'many', 'many', 'few', 'many', 'few', 'many', 'many'])
})

it('are refused beyond a bound, and give their turn on when their caller leaves', async () => {
  const turns = new SubmitTurns()
  turns.noteCall('caller')
  const { begun, submit, end } = openSubmits(turns)
  const leaving = new AbortController()
  const left = submit('a').then(() => submit('b'))
  void submit('a')
  const gone = submit('a', leaving.signal)
  for (let nth = 0; nth < 999; nth++) void submit('a').catch(() => {})
  await expect(submit('a')).rejects.toMatchObject({ code: 'rate_limit_exceeded', retryAfterMs: 2_000 })
  leaving.abort(new Error('left'))
  await expect(gone).rejects.toThrow('left')
  end()
  await until(() => begun.length === 3)
  void left
})
