/**
 * One system under measurement with its callers, as a process of its own: `node bench/durable/driver.ts <system>
 * <settings>`. Prints its address on standard output; each request to `/<shape>/<callers>/<seconds>` is one load,
 * answered with its figures in JSON.
 */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { openBullmq } from './bullmq.ts'
import { openHttp } from './http.ts'
import { type DurableShape, measureCell } from './load.ts'
import { openPgBoss } from './pgboss.ts'
import { openSluice } from './sluice.ts'
import type { JobSystem } from './system.ts'

const [name = '', settings = '{}'] = process.argv.slice(2)
const system = await open(JSON.parse(settings))
const server = createServer((request, response) => {
  const [, shape, callers, seconds] = (request.url ?? '').split('/')
  const cell = { shape: shape as DurableShape, callers: Number(callers) }
  measureCell(system, cell, Number(seconds)).then(
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

function open(given: Record<string, string>): JobSystem | Promise<JobSystem> {
  const { dir = '', databaseUrl, redisPort, url = '', key = '', operatorKey = '' } = given
  if (name === 'sluice') return openSluice({ dir, ...(databaseUrl !== undefined && { databaseUrl }) })
  if (name === 'bullmq') return openBullmq(Number(redisPort))
  if (name === 'pg-boss') return openPgBoss(databaseUrl ?? '')
  if (name === 'http') return openHttp(new URL(url), key, operatorKey)
  throw new Error(`no system ${name}`)
}
