/* Tests the fair queue for submissions of durable jobs while other projects make calls (docs/guides/jobs.md, Limits). */
import { expect, it } from 'vitest'
import { SubmitQueue } from '#shared/capacity/capacity.ts'
import { until } from '../../support/stack.ts'

const never = new AbortController().signal

/** Starts submissions. Each one runs until the test ends it. */
function openSubmits(turns: SubmitQueue) {
  const begun: string[] = []
  const ends: (() => void)[] = []
  const submit = (project: string, signal = never) =>
    turns.run(
      project,
      async () => {
        begun.push(project)
        await new Promise<void>((resolve) => ends.push(resolve))
      },
      signal,
    )
  return { begun, submit, end: () => ends.shift()?.() }
}

it('job submissions are not delayed if no other project makes calls', async () => {
  const turns = new SubmitQueue()
  turns.recordCall('a')
  const { begun, submit } = openSubmits(turns)
  for (let nth = 0; nth < 50; nth++) void submit('a')
  await until(() => begun.length === 50)
})

it('job submissions of two projects run round robin while a third project makes calls', async () => {
  const turns = new SubmitQueue()
  turns.recordCall('caller')
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

it('job submissions are refused with rate_limit_exceeded while 1,000 submissions of the project wait', async () => {
  const turns = new SubmitQueue()
  turns.recordCall('caller')
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
