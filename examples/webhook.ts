/**
 * Receives webhooks and checks their signatures: `WEBHOOK_SECRET=whsec_… node webhook.ts`. Node 22.18 or newer. A
 * message with a wrong signature, or older than five minutes, gets a 400 and is ignored.
 */
import { createHmac, timingSafeEqual } from 'node:crypto'
import { createServer, type IncomingHttpHeaders } from 'node:http'
import { text } from 'node:stream/consumers'

const secret = process.env.WEBHOOK_SECRET
if (!secret) throw new Error('WEBHOOK_SECRET is missing: GET /v1/webhook-secrets gives it.')
const key = Buffer.from(secret.replace(/^whsec_/, ''), 'base64')
const seen = new Set<unknown>() // use a database table if messages must survive a restart

createServer(async (request, response) => {
  const body = await text(request).catch(() => '') // the sender disconnected
  if (!isGenuine(request.headers, body)) return response.writeHead(400).end()
  response.writeHead(204).end() // respond first, then work
  const { id, type, data } = JSON.parse(body)
  if (!seen.has(id)) console.log(type, data.id)
  seen.add(id)
}).listen(Number(process.env.PORT ?? 9000), '127.0.0.1')

/** Whether a message has a valid signature and is at most five minutes old, so that a recorded message cannot be replayed. */
function isGenuine(headers: IncomingHttpHeaders, body: string): boolean {
  const { 'webhook-id': id, 'webhook-timestamp': time, 'webhook-signature': signatures } = headers
  if (!(Math.abs(Date.now() / 1_000 - Number(time)) <= 300)) return false
  const expected = Buffer.from(`v1,${createHmac('sha256', key).update(`${id}.${time}.${body}`).digest('base64')}`)
  const given = String(signatures)
    .split(' ')
    .map((each) => Buffer.from(each))
  return given.some((each) => each.length === expected.length && timingSafeEqual(each, expected))
}
