import { expect, it } from 'vitest'
import { INPUTS_HELD_MAX, takePermits } from '#services/embeddings/embeddings.ts'
import { Semaphore } from '#shared/capacity/semaphore.ts'
import { failureOf } from '../../support/sdk.ts'

const never = () => new AbortController().signal

/** Opens a semaphore and takes permits for `jobs` jobs of maximum size. `leaves` are the functions that release the permits of each job. */
async function openWith(jobs: number) {
  const room = new Semaphore({ permits: INPUTS_HELD_MAX })
  const leaves = await Promise.all(Array.from({ length: jobs }, () => takePermits(room, 2_048, never())))
  const entered: string[] = []
  const enter = (name: string, inputs: number, signal = never()) => {
    const entering = takePermits(room, inputs, signal)
    entering.then(
      () => entered.push(name),
      () => {},
    )
    return entering
  }
  return { room, leaves, entered, enter }
}

/** Resolves after all promise callbacks that were pending at the time of the call. */
const settled = () => new Promise((resolve) => setImmediate(resolve))

it('the memory semaphore for embeddings delays a large job, but no small job', async () => {
  const { leaves, entered, enter } = await openWith(16)
  void enter('large', 100)
  void enter('small', 32)
  await settled()
  expect(entered).toEqual(['small'])
  leaves[0]?.()
  await settled()
  expect(entered).toEqual(['small', 'large'])
})

it('the memory semaphore for embeddings grants large jobs in order of arrival', async () => {
  const { leaves, entered, enter } = await openWith(16)
  for (const [name, inputs] of [
    ['first', 2_048],
    ['second', 40],
    ['third', 2_048],
  ] as const)
    void enter(name, inputs)
  leaves[0]?.()
  await settled()
  expect(entered).toEqual(['first'])
  leaves[1]?.()
  await settled()
  expect(entered).toEqual(['first', 'second'])
})

it('the memory semaphore for embeddings grants the next job if a waiting job is cancelled', async () => {
  const { leaves, entered, enter } = await openWith(16)
  const cancel = new AbortController()
  leaves[0]?.()
  void enter('first', 1_000)
  const second = enter('second', 2_000, cancel.signal)
  void enter('third', 1_000)
  cancel.abort(new Error('left'))
  expect(await failureOf(second)).toMatchObject({ message: 'left' })
  await settled()
  expect(entered).toEqual(['first', 'third'])
})
