import { once } from 'node:events'
import { connect } from 'node:net'
import { describe, expect, it } from 'vitest'
import { listen } from '#services/ingress/http/server.ts'

/**
 * Number of connections. The kernel distributes them at random to two servers. With 31 connections, the probability that one server
 * receives none is one in a billion.
 */
const CALLERS = 31

/** Starts an HTTP server whose response body is its name. */
async function start(name: string, port: number, reusePort: boolean) {
  return await listen((_req, res) => res.end(name), { host: '127.0.0.1', port, reusePort })
}

async function ask(port: number): Promise<string> {
  const socket = connect(port, '127.0.0.1')
  socket.write('GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n')
  let said = ''
  socket.on('data', (bytes) => (said += bytes))
  await once(socket, 'close')
  return said.slice(-1)
}

describe.skipIf(process.platform !== 'linux')('the setting REUSE_PORT', () => {
  it('distributes the callers of one port over all ingresses that share the port', async () => {
    const first = await start('1', 0, true)
    const second = await start('2', first.port, true)
    const answers = await Promise.all(Array.from({ length: CALLERS }, () => ask(first.port)))
    expect(new Set(answers)).toEqual(new Set(['1', '2']))
    first.server.close()
    second.server.close()
  })

  it('is off by default, so that a second listener on the port fails with EADDRINUSE', async () => {
    const first = await start('1', 0, false)
    await expect(start('2', first.port, true)).rejects.toThrow('EADDRINUSE')
    first.server.close()
  })
})
