import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { type BrokerFault, type Leader, runBrokerFaults } from './brokers.ts'
import { whyNoCluster } from './cluster.ts'

const missing = await whyNoCluster()
if (missing && process.env.CI === 'true') throw new Error(`The broker faults cannot run: ${missing}`)

const LEADERS: readonly Leader[] = ['jobs', 'replies', 'coordinator', 'controller']
const ALL: readonly BrokerFault[] = [
  ...(['SIGKILL', 'SIGSTOP'] as const).flatMap((signal) => LEADERS.map((leader) => ({ signal, leader }))),
  'roll',
]
/** Faults of the short form of this test: one fault of each kind. The nine faults of {@link ALL} take five minutes. */
const SHORT: readonly BrokerFault[] = [
  { signal: 'SIGSTOP', leader: 'replies' },
  { signal: 'SIGKILL', leader: 'coordinator' },
  'roll',
]
/**
 * True for the long form of this test, with all faults, longer faults and both Kafka clients. Only the long form checks the number of failed calls and the
 * times, because these depend on the load of the machine.
 */
const isLong = process.env.BROKER_FAULTS === 'long'
const SILENT_MS_MAX = 8_000
const WAIT_MS_P99_MAX = 10_000

describe.skipIf(missing)('three brokers with TLS and SASL', () => {
  it.each(isLong ? (['share', 'classic'] as const) : (['share'] as const))(
    'lose no record and deliver no record twice while partition leaders are killed and stopped (KAFKA_CLIENT=%s)',
    { timeout: isLong ? 1_800_000 : 600_000 },
    async (client) => {
      const directory = await mkdtemp(join(tmpdir(), 'sluice-brokers-'))
      const times = isLong ? { awayMs: 12_000, echoMs: 10_000 } : { awayMs: 9_000, echoMs: 5_000 }
      const onProgress = (line: string) => void process.stderr.write(`${client}: ${line}\n`)
      const run = { client, faults: isLong ? ALL : SHORT, ...times, directory, onProgress }
      const { figures, story, wrong, failed, silentMsMax, waitMsP99 } = await runBrokerFaults(run)
      const { 'accepted jobs': accepted, completed } = figures
      const counts = `${completed} of ${accepted} jobs, ${failed.length} failed calls`
      onProgress(`${counts}; longest silence ${silentMsMax} ms; p99 of the wait of jobs ${waitMsP99} ms`)
      expect(story, `violations; the histories are in ${directory}`).toBe('')
      expect(figures).toMatchObject({ 'lost jobs': 0, 'jobs with two ends': 0, 'faults that could not be done': 0 })
      expect(completed).toBe(accepted)
      expect(wrong, 'lost or doubled output of attached calls').toEqual([])
      if (isLong) {
        expect(failed, 'attached calls that failed').toEqual([])
        expect(silentMsMax, 'longest silence of an attached call').toBeLessThanOrEqual(SILENT_MS_MAX)
        expect(waitMsP99, 'p99 of the wait of a durable job').toBeLessThanOrEqual(WAIT_MS_P99_MAX)
      }
      await rm(directory, { recursive: true, force: true })
    },
  )
})
