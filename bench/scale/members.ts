/**
 * Members of a fleet as the control channel knows them: `node bench/scale/members.ts SPEAKERS HEARERS`, with the settings of
 * the service in its environment. A hearer has connections of its own and hears all others, as a process does. Of the speakers
 * the first one hears as well, and all others say what it says, each by its own name: they are there only so that the hearers
 * have something to hear. It prints its address when all have joined, and answers there what the first hearer has heard.
 */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
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
const heard = { records: 0, bytes: 0 }

if (speakers > 0) await join(repeated(await openBroker(), speakers - 1))
for (let i = 0; i < hearers; i++) {
  // Processes start when they start: what they say is spread over the time between two heartbeats.
  await sleep(HEARTBEAT_MS / hearers)
  const broker = await openBroker()
  await join(i === 0 ? counted(broker) : broker)
}
const server = createServer((_, response) => response.end(JSON.stringify(heard)))
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})

async function openBroker(): Promise<Broker> {
  const fail = (error: unknown) => {
    throw error
  }
  return (await openPorts(config, log, 'bench', false, fail)).broker
}

/** The broker, except that whatever is sent is sent by so many others too, spread over the time between two heartbeats. */
function repeated(broker: Broker, count: number): Broker {
  const send = broker.send.bind(broker)
  const others = Array.from({ length: count }, () => newId('boot_', 16))
  broker.send = (channel, partition, key, value) => {
    for (const [index, boot] of others.entries()) {
      const own = Buffer.from(value.toString().replace(/boot_\w+/, boot))
      setTimeout(() => void send(channel, partition, key, own), (HEARTBEAT_MS * (index + 1)) / count)
    }
    return send(channel, partition, key, value)
  }
  return broker
}

/** The broker, except that what is received is counted. */
function counted(broker: Broker): Broker {
  const receive = broker.receive.bind(broker)
  broker.receive = (channel, partition, onRecord) =>
    receive(channel, partition, (record) => {
      heard.records++
      heard.bytes += record.value.length
      onRecord(record)
    })
  return broker
}

async function join(broker: Broker): Promise<void> {
  await Presence.open({ broker, self: memberOf(newId('boot_', 16)), listener: {}, lostMs: config.workerLostMs, log })
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
      concurrency_limits: [{ kind: 'generate', model: 'model-0', capacity: 8 }],
      backlog: [],
    }),
  }
}
