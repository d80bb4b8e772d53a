/*
 * Drives one system with its callers, in its own process: `driver.ts SYSTEM SETTINGS`. Prints its address on standard output. A request to
 * `/SHAPE/CALLERS/SECONDS` puts a load on the system and returns the figures as JSON.
 *
 * With the shape `submit`, callers submit jobs while no worker runs. Afterwards the workers empty the queue. With `busy`, callers submit
 * jobs while the workers run. With `whole`, each caller submits a job and waits until the job is completed.
 */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { percentile } from '../results/samples.ts'
import { openBullmq } from './bullmq.ts'
import { openHttp } from './http.ts'
import { openLibrary } from './library.ts'
import { openPgBoss } from './pgboss.ts'
import type { JobSystem } from './system.ts'

export interface DurableFigures extends Readonly<Record<string, number>> {
  /** Submitted jobs per second. With the shape `whole`, completed jobs per second. */
  readonly perSecond: number
  readonly p50: number
  readonly p99: number
  readonly completedPerSecond: number
  readonly jobs: number
}

const [name = '', settings = '{}'] = process.argv.slice(2)
const system = await open(JSON.parse(settings))
const server = createServer((request, response) => {
  const [, shape = '', callers, seconds] = (request.url ?? '').split('/')
  measure(shape, Number(callers), Number(seconds)).then(
    (figures) => response.end(JSON.stringify(figures)),
    (error: unknown) => response.writeHead(500).end(String(error)),
  )
})
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})
process.once('SIGTERM', () => {
  server.close()
  server.closeAllConnections()
  void system.close().finally(() => process.exit())
})

function open(given: Record<string, string>): Promise<JobSystem> {
  const { dir = '', databaseUrl, redisPort, url = '', key = '', operatorKey = '' } = given
  if (name === 'library') return openLibrary({ dir, ...(databaseUrl !== undefined && { databaseUrl }) })
  if (name === 'bullmq') return openBullmq(Number(redisPort))
  if (name === 'pg-boss') return openPgBoss(databaseUrl ?? '')
  if (name === 'http') return openHttp({ url: new URL(url), key }, operatorKey)
  throw new Error(`no system ${name}`)
}

/** Puts a load on the system and waits until no jobs are left. @throws Error if a job fails */
async function measure(shape: string, callers: number, seconds: number): Promise<DurableFigures> {
  const isWhole = shape === 'whole'
  const worksMeanwhile = shape !== 'submit'
  if (worksMeanwhile) await system.startWork(isWhole)
  const times: number[] = []
  const startedAt = performance.now()
  const until = startedAt + seconds * 1_000
  const caller = async () => {
    for (let at = performance.now(); at < until; at = performance.now()) {
      const id = await system.submit()
      if (isWhole) await system.completed(id)
      times.push(performance.now() - at)
    }
  }
  await Promise.all(Array.from({ length: callers }, caller))
  const submittedAt = performance.now()
  if (!worksMeanwhile) await system.startWork(false)
  await system.drained()
  const workedMs = performance.now() - (worksMeanwhile ? startedAt : submittedAt)
  await system.stopWork()
  return {
    perSecond: (times.length * 1_000) / (submittedAt - startedAt),
    p50: percentile(times, 0.5),
    p99: percentile(times, 0.99),
    completedPerSecond: (times.length * 1_000) / workedMs,
    jobs: times.length,
  }
}
