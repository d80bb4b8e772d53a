import { expect, it } from 'vitest'
import { startStack } from '../../support/stack.ts'

it('says that it lives, is ready and how it does without a key', async () => {
  await using stack = await startStack()
  for (const path of ['/healthz', '/health']) {
    const response = await fetch(stack.url + path)
    expect([response.status, await response.json()]).toEqual([200, { status: 'ok' }])
  }
  expect(await (await fetch(`${stack.url}/readyz`)).json()).toEqual({ status: 'ready' })
  expect(await (await fetch(`${stack.url}/metrics`)).text()).toContain('sluice_attached_jobs')
})
