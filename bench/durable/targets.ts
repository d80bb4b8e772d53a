import { mkdirSync, writeFileSync } from 'node:fs'
import { basename, join, resolve } from 'node:path'
import { sluice, urlOf } from '../calls/targets.ts'
import type { Kafka } from '../machine/kafka.ts'
import { type Processes, run } from '../machine/processes.ts'
import { type DurablePart, processPart, treePart } from './parts.ts'
import type { Postgres, Redis } from './servers.ts'

/** What is measured, in the order of each round. BullMQ is what the others are compared with. */
export const DURABLE_NAMES = [
  'bullmq',
  'pg-boss',
  'library',
  'library-sqlite',
  'http-bare',
  'http',
  'http-sqlite',
] as const
export type DurableName = (typeof DURABLE_NAMES)[number]

/** A driver that runs one system: puts loads on it when it is asked to. */
export interface DurableTarget {
  readonly name: DurableName
  readonly url: URL
  /** All that works for it, the driver with its callers first. */
  readonly parts: readonly DurablePart[]
}

/** What the systems stand on; undefined where it is not to be had here. */
export interface Servers {
  readonly kafka: Kafka
  readonly postgres: Postgres | undefined
  readonly redis: Redis | undefined
}

const KEY = 'sk-bench-0123456789abcdef0123456789abcdef'

/** Starts one system and its driver. @returns undefined when it lacks what it stands on */
export async function startDurableTarget(
  name: DurableName,
  servers: Servers,
  processes: Processes,
): Promise<DurableTarget | undefined> {
  const parts: DurablePart[] = []
  const settings = await settingsOf(name, servers, processes, parts)
  if (!settings) return undefined
  const system = name.replace('library', 'sluice').replace(/-(sqlite|bare)$/, '')
  const args = [system, JSON.stringify(settings)]
  const driver = await processes.node({ name, script: './durable/driver.ts', args, addressOn: 'stdout' })
  const callers = name.startsWith('http') ? 'callers' : 'callers, library and workers'
  return { name, url: urlOf(driver), parts: [...processPart(callers, driver.pid), ...parts] }
}

/** What the driver of a system is told. @param parts Gets what works for it beside the driver */
async function settingsOf(
  name: DurableName,
  { kafka, postgres, redis }: Servers,
  processes: Processes,
  parts: DurablePart[],
): Promise<Record<string, string> | undefined> {
  const dir = join(processes.dir, name)
  mkdirSync(dir)
  if (name === 'bullmq') parts.push(...processPart('Redis', redis?.pid))
  else if (!/sqlite$|bare$/.test(name)) parts.push(...treePart('Postgres', postgres?.pid))
  switch (name) {
    case 'bullmq':
      return redis && { redisPort: String(redis.port) }
    case 'pg-boss':
      return postgres && { databaseUrl: await postgres.createDatabase('pg_boss') }
    case 'library':
      return postgres && { dir, databaseUrl: await postgres.createDatabase('library') }
    case 'library-sqlite':
      return { dir }
    case 'http-bare':
      return await startBare(processes, parts)
    case 'http':
      return postgres && (await startFleet(processes, dir, kafka, await postgres.createDatabase('http'), parts))
    case 'http-sqlite':
      return await startOne(processes, dir, parts)
  }
}

/** An ingress, a worker and a scheduler around Kafka and Postgres. */
async function startFleet(processes: Processes, dir: string, kafka: Kafka, databaseUrl: string, parts: DurablePart[]) {
  const fleet = {
    KAFKA_BROKERS: kafka.brokers,
    // Topics of its own, as the database is.
    KAFKA_PREFIX: `${basename(databaseUrl)}.`,
    DATABASE_URL: databaseUrl,
  }
  const env = { ...environmentOf(dir), ...fleet }
  const ingress = await processes.node(sluice('http-ingress', ['ingress'], env))
  const worker = await processes.node({ ...sluice('http-inference', ['inference'], env), addressOn: 'none' })
  const scheduler = await processes.node({ ...sluice('http-scheduler', ['scheduler'], env), addressOn: 'none' })
  const roles = [...processPart('ingress', ingress.pid), ...processPart('worker', worker.pid)]
  parts.push(...roles, ...processPart('scheduler', scheduler.pid), ...processPart('Kafka', kafka.pid))
  return { url: urlOf(ingress).href, key: KEY, operatorKey: await createOperator(env) }
}

/** A server that keeps nothing. */
async function startBare(processes: Processes, parts: DurablePart[]) {
  const bare = await processes.node({
    name: 'http-bare-server',
    script: './durable/bare.ts',
    args: [],
    addressOn: 'stdout',
  })
  parts.push(...processPart('the server', bare.pid))
  return { url: urlOf(bare).href, key: KEY, operatorKey: KEY }
}

/** `npm start`. */
async function startOne(processes: Processes, dir: string, parts: DurablePart[]) {
  const env = environmentOf(dir)
  const whole = await processes.node(sluice('http-sqlite-sluice', [], env))
  parts.push(...processPart('the one process', whole.pid))
  return { url: urlOf(whole).href, key: KEY, operatorKey: await createOperator(env) }
}

/** A key for the operator's door, which pauses the workers. */
async function createOperator(env: Record<string, string>): Promise<string> {
  const script = resolve(import.meta.dirname, '../../services/cli/cli.ts')
  const printed = await run(process.execPath, [script, 'keys', 'create', '--scopes', 'admin'], env)
  // To a pipe it prints JSON.
  const { secret } = JSON.parse(printed) as { secret?: string }
  if (secret === undefined) throw new Error('no key was made')
  return secret
}

/** Sluice's defaults, but for where things are, and the engine that costs nothing. */
function environmentOf(dir: string): Record<string, string> {
  const modelsFile = join(dir, 'models.yaml')
  writeFileSync(modelsFile, 'models:\n  - id: echo-1\n    engine: { type: echo }\n')
  return { PORT: '0', DATA_DIR: dir, MODELS_FILE: modelsFile, SLUICE_API_KEY: KEY }
}
