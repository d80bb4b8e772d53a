import { execFile } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { sluice, urlOf } from '../calls/targets.ts'
import type { Postgres } from '../durable/servers.ts'
import type { Kafka } from '../machine/kafka.ts'
import type { Processes } from '../machine/processes.ts'
import { post } from './caller.ts'

/** What is measured: everything in one process, and ingresses and a worker that meet in Kafka and Postgres. */
export const FLEETS = ['one process', 'Kafka, one ingress', 'Kafka, three ingresses'] as const
export type FleetName = (typeof FLEETS)[number]

/** Slots of the one worker: few, so that a flood is cheap to make. */
export const SLOTS = 12

const COMMAND = new URL('../../services/cli/cli.ts', import.meta.url).pathname
const READY_MS = 60_000

/** A service that runs, and the keys of its two tenants. */
export interface Fleet {
  readonly name: FleetName
  readonly urls: readonly URL[]
  readonly keys: { readonly a: string; readonly b: string }
}

/** Starts a service and makes its two keys; resolves when a call of each has been answered. */
export async function startFleet(
  name: FleetName,
  processes: Processes,
  kafka: Kafka,
  postgres: Postgres,
): Promise<Fleet> {
  const id = FLEETS.indexOf(name)
  const dataDir = join(processes.dir, `turns-${id}`)
  mkdirSync(dataDir)
  const modelsFile = join(processes.dir, 'echo.yaml')
  writeFileSync(modelsFile, 'models:\n  - id: echo-1\n    engine: { type: echo }\n')
  const isWhole = name === 'one process'
  const env = {
    ...{ PORT: '0', DATA_DIR: dataDir, MODELS_FILE: modelsFile, INFERENCE_SLOTS: String(SLOTS), LOG_LEVEL: 'warn' },
    ...(!isWhole && {
      KAFKA_BROKERS: kafka.brokers,
      KAFKA_PREFIX: `bench-${process.pid}-turns-${id}.`,
      DATABASE_URL: await postgres.createDatabase(`turns_${id}`),
    }),
  }
  const keys = { a: await createKey('a', env), b: await createKey('b', env) }
  const urls = isWhole
    ? [urlOf(await processes.node(sluice(`turns-${id}`, [], env)))]
    : await startRoles(name, processes, env)
  const fleet = { name, urls, keys }
  for (const url of urls) for (const key of Object.values(keys)) await untilAnswered(url, key)
  return fleet
}

async function startRoles(name: FleetName, processes: Processes, env: Record<string, string>): Promise<URL[]> {
  const urls: URL[] = []
  const id = env.KAFKA_PREFIX ?? ''
  for (let i = 0; i < (name === 'Kafka, three ingresses' ? 3 : 1); i++) {
    urls.push(urlOf(await processes.node(sluice(`${id}ingress-${i}`, ['ingress'], env))))
  }
  for (const role of ['inference', 'scheduler']) {
    await processes.node({ ...sluice(`${id}${role}`, [role], env), addressOn: 'none' })
  }
  return urls
}

/** @returns The secret of a new key, which is a tenant of its own */
async function createKey(name: string, env: Record<string, string>): Promise<string> {
  const options = { env: { PATH: process.env.PATH, ...env }, timeout: READY_MS, cwd: env.DATA_DIR }
  const { stdout } = await promisify(execFile)(process.execPath, [COMMAND, 'keys', 'create', '--name', name], options)
  return JSON.parse(stdout).secret
}

async function untilAnswered(url: URL, key: string): Promise<void> {
  const deadline = Date.now() + READY_MS
  for (;;) {
    const status = await post(url, key, 'ready').catch(() => 0)
    if (status === 200) return
    if (Date.now() > deadline) throw new Error(`${url.href} gave no answer within ${READY_MS} ms: ${status}`)
    await sleep(100)
  }
}
