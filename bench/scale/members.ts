/**
 * Members of a fleet as the control channel knows them: `node bench/scale/members.ts SPEAKERS HEARERS`, with the settings of
 * the service in its environment. Each says that it lives, as every process does. A hearer has connections of its own and
 * hears all others, as a process does; speakers have one broker together and hear nobody, for they are there only so that
 * the hearers have something to hear. It prints a line when all have joined.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { PoolName } from '#schemas/job.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { parseConfig } from '#shared/config/config.ts'
import { newId } from '#shared/id.ts'
import { Presence, type Self } from '#shared/jobs/presence.ts'
import { openLog } from '#shared/log/log.ts'
import { openPorts } from '#shared/ports.ts'

const MODELS = Array.from({ length: 10 }, (_, i) => `model-${i}`)
/** Of {@link Presence}. */
const HEARTBEAT_MS = 500
const POOL: PoolName = 'inference'

const [speakers = 0, hearers = 0] = process.argv.slice(2).map(Number)
const config = parseConfig(process.env)
const log = openLog('silent', 'bench')

if (speakers > 0) {
  const broker = await openBroker()
  broker.receive = async () => ({ close: async () => undefined })
  await join(broker, speakers)
}
for (let i = 0; i < hearers; i++) await join(await openBroker(), 1)
process.stdout.write('http://127.0.0.1:1 all have joined\n')

async function openBroker(): Promise<Broker> {
  const fail = (error: unknown) => {
    throw error
  }
  return (await openPorts(config, log, 'bench', false, fail)).broker
}

async function join(broker: Broker, count: number): Promise<void> {
  for (let i = 0; i < count; i++) {
    // Processes start when they start: what they say is spread over the time between two heartbeats.
    await sleep(HEARTBEAT_MS / count)
    await Presence.open({ broker, self: memberOf(newId('boot_', 16)), listener: {}, lostMs: config.workerLostMs, log })
  }
}

/** A worker with ten models, one of which has a bound, under a load that does not end. */
function memberOf(boot: string): Self {
  return {
    boot,
    role: POOL,
    version: 'bench',
    slots: () => 256,
    running: () => 100,
    isDraining: () => false,
    capacity: () => ({
      models: MODELS,
      bounds: [{ kind: 'generate', model: 'model-0', capacity: 8 }],
      waiting: [],
    }),
  }
}
