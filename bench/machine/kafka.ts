import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { run } from './processes.ts'

/** A broker to measure with. Disposing it stops it, unless it was there before. */
export interface Kafka extends AsyncDisposable {
  readonly brokers: string
  /** undefined: it runs elsewhere. */
  readonly pid: number | undefined
  readonly version: string
}

/**
 * Starts a Kafka of our own with deploy/kafka-local.sh, or takes the one named by KAFKA_BROKERS.
 *
 * @param dir Where it keeps its data
 * @throws Error saying what is missing
 */
export async function openKafka(dir: string): Promise<Kafka> {
  const given = process.env.KAFKA_BROKERS
  if (given) return { brokers: given, pid: undefined, version: 'given', async [Symbol.asyncDispose]() {} }
  const script = fileURLToPath(new URL('../../deploy/kafka-local.sh', import.meta.url))
  const env = { KAFKA_RUN_DIR: join(dir, 'kafka') }
  let pid: number | undefined
  // Whatever ends this process early must not leave the broker behind.
  const kill = () => void (pid && process.kill(pid, 'SIGKILL'))
  process.once('exit', kill)
  const stop = async () => {
    process.off('exit', kill)
    await run('bash', [script, 'clean'], env)
  }
  try {
    const brokers = await run('bash', [script, 'start'], env)
    pid = Number(readFileSync(join(env.KAFKA_RUN_DIR, '1', 'pid'), 'utf8'))
    const log = readFileSync(join(env.KAFKA_RUN_DIR, '1', 'log'), 'utf8')
    const version = /Kafka version: (\S+)/.exec(log)?.[1] ?? 'unknown'
    return { brokers, pid, version, [Symbol.asyncDispose]: stop }
  } catch (error) {
    await stop()
    throw error
  }
}
