import { setTimeout as delay } from 'node:timers/promises'
import { pino } from 'pino'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { ServiceError } from '#shared/lib/error.ts'
import { openWhenAvailable } from '#shared/process/wait-for-dependency.ts'

const WORDS = 'Postgres rejects the user or the password: password authentication failed (SQLSTATE 28P01)'
const away = (isPermanent: boolean) => {
  const cause = Object.assign(new Error(WORDS), { remediation: 'Correct the password.', isPermanent })
  return new ServiceError('overloaded', 'The job store cannot be reached now.', { cause })
}

describe('a start with an unavailable dependency', () => {
  beforeEach(() => void vi.useFakeTimers({ toFake: ['performance'] }))
  afterEach(() => void vi.useRealTimers())

  async function start(error: Error) {
    const lines: string[] = []
    const log = pino({}, { write: (line: string) => void lines.push(line) })
    const opening = openWhenAvailable('Postgres', () => Promise.reject(error), log).catch((thrown: Error) => thrown)
    // The clock must be advanced only after the first try has failed, so the test waits for a short real time.
    await delay(10)
    vi.advanceTimersByTime(200_000)
    return { message: ((await opening) as Error).message, lines: lines.map((line) => JSON.parse(line)) }
  }

  it.each([true, false])(
    'logs the problem, the remedy and the maximum wait (permanent failure: %s)',
    async (isPermanent) => {
      const { message, lines } = await start(away(isPermanent))
      expect(message).toBe(`${WORDS}. Correct the password.`)
      const wait_ms = isPermanent ? 5_000 : 120_000
      expect(lines).toMatchObject([
        {
          msg: 'dependency unavailable; waiting to start',
          problem: WORDS,
          remediation: 'Correct the password.',
          wait_ms,
        },
      ])
    },
  )

  it('waits at most two minutes for a transient failure, and five seconds for a permanent one', async () => {
    const log = pino({ level: 'silent' })
    const over: boolean[] = []
    const openings = [true, false].map((isPermanent) =>
      openWhenAvailable('Postgres', () => Promise.reject(away(isPermanent)), log).catch(() => over.push(isPermanent)),
    )
    vi.advanceTimersByTime(8_000)
    await openings[0]
    // The delay between two tries is at most two seconds, and uses a real timer. The test therefore waits for real time.
    await delay(1_000)
    expect(over).toEqual([true])
    vi.advanceTimersByTime(120_000)
    await openings[1]
    expect(over).toEqual([true, false])
  })
})
