import { expect, it } from 'vitest'
import { Hysteresis, secondsToEmpty, slotsNeeded, type Work, workOf, workOnly } from '#shared/jobs/fleet-work.ts'
import type { Peer } from '#shared/jobs/peers.ts'

it('a pool needs the slots of its running jobs, and enough slots to finish its queued jobs within a minute', () => {
  expect(slotsNeeded([{ queued: 120, running: 8, seconds: 4 }])).toBe(16)
  expect(slotsNeeded([{ queued: 0, running: 3, seconds: 4 }])).toBe(3)
  expect(slotsNeeded([{ queued: 5, running: 0, seconds: 600 }]), 'one slot per job at most').toBe(5)
  expect(slotsNeeded([{ queued: 5, running: 0, seconds: undefined }]), 'unknown duration').toBe(5)
  expect(slotsNeeded([])).toBe(0)
})

it('the estimated time to empty a queue is computed from the measured job duration, or unknown if no job was measured', () => {
  expect(secondsToEmpty([{ queued: 100, running: 4, seconds: 2 }], 4)).toBe(50)
  expect(secondsToEmpty([{ queued: 0, running: 4, seconds: undefined }], 0)).toBe(0)
  expect(secondsToEmpty([{ queued: 1, running: 0, seconds: undefined }], 4)).toBeUndefined()
  expect(secondsToEmpty([{ queued: 1, running: 0, seconds: 2 }], 0)).toBeUndefined()
})

it('the wanted number of workers rises at once, and falls only after five minutes of lower values', () => {
  const wanted = new Hysteresis()
  expect(wanted.add('inference', 2, 0)).toBe(2)
  expect(wanted.add('inference', 6, 1_000)).toBe(6)
  expect(wanted.add('inference', 1, 2_000)).toBe(6)
  expect(wanted.add('inference', 3, 200_000)).toBe(6)
  expect(wanted.add('inference', 1, 301_001)).toBe(3)
  expect(wanted.add('inference', 1, 601_002)).toBe(1)
  expect(wanted.add('inference', 4, 601_003)).toBe(4)
  expect(wanted.add('code', 1, 601_003), 'another pool').toBe(1)
})

it('calls on workers of an earlier version are counted from the reports of the ingress', () => {
  const row: Work = { pool: 'inference', model: 'm', queued: 3, running: 8 }
  const peer = (role: Peer['role'], capacity?: object) => ({ boot: role, role, capacity }) as Peer
  const old = workOf([peer('ingress', workOnly([row])), peer('inference')], 'inference')
  expect(old.models.get('m')).toMatchObject({ queued: 3, running: 8 })
  const own = { ...row, queued: 0, running: 9, ended: 2, busy_ms: 500 }
  const current = workOf([peer('ingress', workOnly([row])), peer('inference', workOnly([own]))], 'inference')
  expect(current.models.get('m'), 'not counted twice').toMatchObject({ queued: 3, running: 9, seconds: 0.25 })
})
