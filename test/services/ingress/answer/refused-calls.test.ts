import { expect, it } from 'vitest'
import { ApiKeys } from '#services/ingress/callers/keys.ts'
import { startStack } from '../../../support/stack.ts'

const ECHO = { model: 'echo-1', messages: [{ role: 'user', content: '!echo first_ms=60000\nhi' }] }

it('a call that is refused with 429 leaves no listener for the revocation of its key', async () => {
  const watched = { count: 0 }
  const watch = ApiKeys.prototype.watch
  ApiKeys.prototype.watch = function (key, onRevoked) {
    watched.count++
    const end = watch.call(this, key, onRevoked)
    return () => {
      watched.count--
      end()
    }
  }
  try {
    await using stack = await startStack({ settings: { CONCURRENCY_MAX_PER_KEY: '1' } })
    const leave = new AbortController()
    const running = stack.post('/v1/chat/completions', ECHO, { signal: leave.signal }).catch(() => undefined)
    await expect.poll(() => watched.count).toBe(1)
    for (let i = 0; i < 20; i++) {
      const refused = await stack.post('/v1/chat/completions', ECHO)
      expect(refused.status).toBe(429)
      await refused.text()
    }
    await expect.poll(() => watched.count).toBe(1)
    leave.abort()
    await running
    await expect.poll(() => watched.count).toBe(0)
  } finally {
    ApiKeys.prototype.watch = watch
  }
})
