import { execFile } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { mkdtemp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { SHORT_LIVED } from '../support/processes/kafka.ts'
import type { Actor } from './load/actor.ts'

const run = promisify(execFile)
const SCRIPT = join(import.meta.dirname, '../../deploy/kafka-local.sh')
const COMMAND_TIMEOUT_MS = 120_000

/** A real Kafka broker (one node) that the chaos test can kill, freeze and restart. Disposing stops the broker and deletes its directory. */
export interface BrokerActor extends Actor, AsyncDisposable {
  /** `host:port`, constant across restarts. */
  readonly address: string
  /** Kills the broker and restarts it with an empty disk, to simulate the loss of all queued records. */
  wipe(): Promise<void>
}

/**
 * Starts the broker.
 *
 * @throws Error if deploy/kafka-local.sh cannot start a broker on this machine
 */
export async function startBroker(): Promise<BrokerActor> {
  const runDir = await mkdtemp(join(tmpdir(), 'sluice-chaos-kafka-'))
  const script = async (command: string, env: Record<string, string> = {}) => {
    const options = { env: { ...SHORT_LIVED, ...process.env, KAFKA_NODES: '1', KAFKA_RUN_DIR: runDir, ...env } }
    return (await run(SCRIPT, [command], { ...options, timeout: COMMAND_TIMEOUT_MS })).stdout.trim()
  }
  const address = await script('start')
  const signal = (name: NodeJS.Signals) => {
    const file = join(runDir, '1/pid')
    if (existsSync(file)) process.kill(Number(readFileSync(file, 'utf8')), name)
  }
  return {
    name: 'broker',
    address,
    down: async (how) => void (await script(how === 'SIGKILL' ? 'kill' : 'stop')),
    up: async () => void (await script('resume')),
    freeze: () => signal('SIGSTOP'),
    thaw: () => signal('SIGCONT'),
    async wipe() {
      await script('kill')
      await script('start', { KAFKA_PORT: address.split(':')[1] ?? '' })
    },
    async [Symbol.asyncDispose]() {
      await script('kill')
      await script('clean')
    },
  }
}
