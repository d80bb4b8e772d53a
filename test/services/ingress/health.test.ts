import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { expect, it } from 'vitest'
import { requirePort } from '#services/ingress/ingress.ts'
import { parseConfig } from '#shared/config/config.ts'
import { startWhole } from '../../support/processes/whole.ts'
import { startStack, until } from '../../support/stack.ts'

it('says that it lives, is ready and how it does without a key', async () => {
  await using stack = await startStack()
  for (const path of ['/healthz', '/health']) {
    const response = await fetch(stack.url + path)
    expect([response.status, await response.json()]).toEqual([200, { status: 'ok' }])
  }
  expect(await (await fetch(`${stack.url}/readyz`)).json()).toEqual({ status: 'ready' })
  expect(await (await fetch(`${stack.url}/metrics`)).text()).toContain('sluice_attached_jobs')
})

it('shows its metrics on a port of their own where it is asked to, and there alone', { timeout: 120_000 }, async () => {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  server.close()
  await once(server, 'close')
  await using whole = await startWhole({ settings: { METRICS_PORT: String(port) } })
  const own = `http://127.0.0.1:${port}`
  await until(async () => (await fetch(`${own}/readyz`)).status === 200, { withinMs: 60_000 })
  expect(await (await fetch(`${own}/metrics`)).text()).toContain('sluice_attached_jobs')
  expect((await fetch(`${own}/v1/models`)).status).toBe(404)
  const refused = await fetch(`${whole.url}/metrics`)
  expect([refused.status, Object.keys((await refused.json()) as object)]).toEqual([404, ['error']])
  expect((await fetch(`${whole.url}/healthz`)).status).toBe(200)
})

it('does not start with the same port for both', async () => {
  const config = parseConfig({ PORT: '8081', METRICS_PORT: '8081' })
  await expect(requirePort(config)).rejects.toThrow('METRICS_PORT: 8081 is the PORT of the API.')
})
