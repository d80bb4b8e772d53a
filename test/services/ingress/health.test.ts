import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { request } from 'undici'
import { expect, it } from 'vitest'
import { openHealthPort } from '#services/health-port.ts'
import { requirePort } from '#services/ingress/ingress.ts'
import { parseConfig } from '#shared/config/config.ts'
import { Metrics } from '#shared/lib/metrics.ts'
import type { Log } from '#shared/log/log.ts'
import { Preparations } from '#shared/prepare/preparations.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { openAdmin, secretOf } from '../../support/admin.ts'
import { startSingleProcess } from '../../support/processes/single-process.ts'
import { startStack, until } from '../../support/stack.ts'

it('the health endpoints report liveness, readiness and health without a key', async () => {
  await using stack = await startStack()
  for (const path of ['/healthz', '/health']) {
    const response = await fetch(stack.url + path)
    expect([response.status, await response.json()]).toEqual([200, { status: 'ok' }])
  }
  expect(await (await fetch(`${stack.url}/readyz`)).json()).toEqual({ status: 'ready' })
  expect(await (await fetch(`${stack.url}/metrics`)).text()).toContain('sluice_attached_jobs')
})

it('the metrics endpoint serves local requests, and remote requests only with an admin key', async () => {
  await using admin = await openAdmin()
  const get = async (host: string, ...named: string[]) => {
    const headers = Object.fromEntries([`host: ${host}`, ...named].map((line) => line.split(/: (.*)/s, 2)))
    const { statusCode, body } = await request(`${admin.stack.url}/metrics`, { headers })
    return [host, ...named, statusCode, (await body.text()).includes('sluice_attached_jobs')]
  }
  for (const host of ['localhost:80', '127.0.0.1', '[::1]:80', 'LOCALHOST'])
    expect(await get(host)).toEqual([host, 200, true])
  for (const host of ['evil.example', '127.0.0.1.evil.example', 'localhost.evil.example', '192.0.2.1']) {
    expect(await get(host)).toEqual([host, 401, false])
  }
  for (const name of ['x-forwarded-for', 'forwarded', 'via', 'x-real-ip']) {
    expect(await get('localhost', `${name}: 192.0.2.1`)).toEqual(['localhost', `${name}: 192.0.2.1`, 401, false])
  }
  for (const [who, status] of [
    ['op', 200],
    ['alice', 403],
  ] as const) {
    const key = `authorization: Bearer ${secretOf(who)}`
    expect(await get('sluice.example', key)).toEqual(['sluice.example', key, status, status === 200])
  }
})

it('the ingress sends x-content-type-options: nosniff with every response', async () => {
  await using stack = await startStack()
  for (const path of ['/healthz', '/metrics', '/v1/models', '/v1/nothing', '/']) {
    const { headers } = await stack.get(path)
    expect([path, headers.get('x-content-type-options')]).toEqual([path, 'nosniff'])
  }
})

it('the ingress serves metrics only on METRICS_PORT if that setting is set', { timeout: 120_000 }, async () => {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  server.close()
  await once(server, 'close')
  await using whole = await startSingleProcess({ settings: { METRICS_PORT: String(port) } })
  const own = `http://127.0.0.1:${port}`
  await until(async () => (await fetch(`${own}/readyz`)).status === 200, { withinMs: 60_000 })
  expect(await (await fetch(`${own}/metrics`)).text()).toContain('sluice_attached_jobs')
  expect((await fetch(`${own}/v1/models`)).status).toBe(404)
  const refused = await fetch(`${whole.url}/metrics`)
  expect([refused.status, Object.keys((await refused.json()) as object)]).toEqual([404, ['error']])
  expect((await fetch(`${whole.url}/healthz`)).status).toBe(200)
})

it('the ingress refuses to start if PORT and METRICS_PORT are equal', async () => {
  const config = parseConfig({ PORT: '8081', METRICS_PORT: '8081' })
  await expect(requirePort(config)).rejects.toThrow('METRICS_PORT: 8081 is also the PORT of the API.')
})

it('a process opens METRICS_PORT before its roles are ready, and reports a port that is in use', async () => {
  const told: { port: number }[] = []
  const log = { info: (fields: { port: number }) => told.push(fields), error: () => undefined } as unknown as Log
  const health = await openHealthPort(0, '127.0.0.1', log)
  const port = told[0]?.port ?? 0
  const get = (path: string) => fetch(`http://127.0.0.1:${port}${path}`)
  expect([(await get('/healthz')).status, (await get('/readyz')).status, (await get('/metrics')).status]).toEqual([
    200, 503, 404,
  ])
  await expect(openHealthPort(port, '127.0.0.1', log)).rejects.toThrow(
    `METRICS_PORT: ${port} is in use. Each process needs its own port`,
  )
  const service = { name: 'x', problems: () => ['away'] } as unknown as Service
  health.show([service], { metrics: new Metrics(), preparations: new Preparations() })
  expect(await (await get('/readyz')).json()).toEqual({ status: 'not ready', problems: ['away'] })
  expect((await get('/metrics')).status).toBe(200)
})
