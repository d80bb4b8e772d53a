/* Tests how a pause of a model or pool by an operator takes effect in the processes of a fleet. */
import { expect, it, onTestFinished } from 'vitest'
import type { ControlRecord } from '#schemas/event.ts'
import { Pauses } from '#shared/capacity/capacity.ts'
import type { OperatorStore } from '#shared/store/jobs.ts'
import { silentLog } from '../../support/jobs/jobs.ts'
import { openSqliteDatabase } from '../../support/jobs/stores.ts'
import { until } from '../../support/stack.ts'

const WORK = { pool: 'inference', model: 'echo-1' } as const
const MODEL = { target: 'model', id: 'echo-1' } as const
const unheard = () => undefined

async function openPauses(store?: OperatorStore): Promise<Pauses> {
  const pauses = await Pauses.open(store, silentLog)
  onTestFinished(() => pauses.close())
  return pauses
}

it('a pause of a model or pool applies in every process at once, even without a store', async () => {
  const [one, other] = [await openPauses(), await openPauses()]
  const tell = (record: ControlRecord) => other.onControl(record)
  await one.change(MODEL, true, 'key_op', tell)
  for (const pauses of [one, other]) {
    expect(pauses.of(WORK)).toMatchObject({ ...MODEL, by: 'key_op' })
    expect(pauses.of({ ...WORK, model: 'echo-2' })).toBeUndefined()
    expect(() => pauses.refuse(WORK)).toThrow("The model 'echo-1' is paused")
  }
  await one.change({ target: 'pool', id: 'inference' }, true, 'key_op', tell)
  expect(other.of({ ...WORK, model: 'echo-2' })).toMatchObject({ target: 'pool' })
  await one.change(MODEL, false, 'key_op', tell)
  expect(other.all).toMatchObject([{ target: 'pool', id: 'inference' }])
})

it('a process that missed the notification reads a pause from the store, at its start and later', async () => {
  await using database = await openSqliteDatabase()
  const { operator } = await database.open()
  const [one, other] = [await openPauses(operator), await openPauses(operator)]
  await one.change(MODEL, true, 'key_op', unheard)
  await until(() => other.of(WORK))
  expect((await openPauses(operator)).of(WORK)).toMatchObject(MODEL)
  await one.change(MODEL, false, 'key_op', unheard)
  await until(() => !other.of(WORK))
})

it('a pause remains in effect while the store is unreachable', async () => {
  await using database = await openSqliteDatabase()
  const store = await database.open()
  await store.operator.pause(MODEL, 'key_op')
  const pauses = await openPauses(store.operator)
  await store.close()
  await expect(pauses.change(MODEL, false, 'key_op', unheard)).rejects.toThrow('closed')
  expect(pauses.of(WORK)).toMatchObject(MODEL)
})
