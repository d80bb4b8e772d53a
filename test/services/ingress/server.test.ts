import { once } from 'node:events'
import { connect } from 'node:net'
import { setImmediate as turn } from 'node:timers/promises'
import { expect, it } from 'vitest'
import { listen } from '#services/ingress/http/server.ts'

it('the HTTP server does not start a request whose caller disconnected while the request was queued', async () => {
  const begun: (string | undefined)[] = []
  const { server, port } = await listen((req) => void begun.push(req.url), {
    host: '127.0.0.1',
    port: 0,
    reusePort: false,
  })
  // All 40 requests arrive in one packet, and the server starts at most eight of them per tick. The socket is closed when the last request
  // has been parsed. One tick later, the server detects the closed socket and drops the requests that are still queued.
  server.on('request', (req) => {
    if (req.url === '/39') req.socket.destroy()
  })
  const socket = connect(port, '127.0.0.1').on('error', () => {})
  socket.write(Array.from({ length: 40 }, (_, nth) => `GET /${nth} HTTP/1.1\r\nhost: a\r\n\r\n`).join(''))
  await once(socket, 'close')
  for (let turns = 0; turns < 5; turns++) await turn()
  expect(begun).toContain('/7')
  expect(begun.length).toBeLessThanOrEqual(24)
  server.close()
})
