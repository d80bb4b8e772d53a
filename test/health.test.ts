import { expect, it } from 'vitest'
import { startStack } from './stack.ts'

it('says that it lives, is ready and how it does without a key', async () => {
  await using stack = await startStack()
  expect((await fetch(`${stack.url}/healthz`)).status).toBe(200)
  expect(await (await fetch(`${stack.url}/readyz`)).json()).toEqual({ status: 'ready' })
  expect(await (await fetch(`${stack.url}/metrics`)).text()).toContain('sluice_attached_jobs')
})
