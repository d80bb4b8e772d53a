import { once } from 'node:events'
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { createKafkaJs } from '#shared/broker/kafka/classic/client.ts'
import { BrokerSockets } from '#shared/broker/kafka/classic/sockets.ts'
import type { KafkaOptions } from '#shared/broker/kafka/options.ts'
import { until } from '../../support/stack.ts'

const TICK_MS = 20
/** A hung broker accepts connections and never answers. A live one sends data all the time. */
const [hung, live] = [createServer(), createServer()]
const accepted: Socket[] = []
beforeAll(async () => {
  for (const server of [hung, live]) {
    server.on('connection', (socket) => {
      accepted.push(socket)
      socket.on('error', () => {})
      const timer = setInterval(() => server === live && socket.write('data'), TICK_MS / 4)
      socket.once('close', () => clearInterval(timer))
    })
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
  }
})
afterAll(() => {
  for (const socket of accepted) socket.destroy()
  hung.close()
  live.close()
})

const portOf = (server: Server) => (server.address() as AddressInfo).port

async function connectTo(server: Server, sockets: BrokerSockets): Promise<Socket> {
  const at = { host: '127.0.0.1', port: portOf(server) }
  const socket = sockets.factory({ ...at, ssl: undefined as never, onConnect: () => {} })
  socket.resume()
  await once(socket, 'connect')
  return socket
}

/** A view of the cluster. The test can mark the hung broker as fenced (excluded by the controller), and reads the number of metadata requests. */
function viewOf() {
  const view = { isHungFenced: false, asked: 0 }
  const isFenced = (_host: string, port: number) => view.isHungFenced && port === portOf(hung)
  return Object.assign(view, { isFenced, suspect: () => void view.asked++ })
}

it('a connection to a silent broker stays open until the broker is fenced', async () => {
  const view = viewOf()
  const sockets = new BrokerSockets(view, TICK_MS)
  const socket = await connectTo(hung, sockets)
  socket.write('request')
  const other = await connectTo(live, sockets)
  await until(() => view.asked > 0)
  expect(socket.destroyed).toBe(false)
  view.isHungFenced = true
  await once(socket, 'end')
  expect([socket.destroyed, other.destroyed]).toEqual([true, false])
  other.destroy()
  sockets.close()
})

it('an idle connection causes no metadata request', async () => {
  const view = viewOf()
  const sockets = new BrokerSockets(view, TICK_MS)
  const socket = await connectTo(hung, sockets)
  const other = await connectTo(live, sockets)
  await sleep(20 * TICK_MS)
  expect([view.asked, socket.destroyed]).toEqual([0, false])
  for (const one of [socket, other]) one.destroy()
  sockets.close()
})

it('kafkajs fails at once if the broker is fenced, before and after the connection is open', async () => {
  const view = viewOf()
  const sockets = new BrokerSockets(view, TICK_MS)
  const options = { clientId: 'test', brokers: [`127.0.0.1:${portOf(hung)}`], onProblem: () => {} }
  const admin = createKafkaJs(options as unknown as KafkaOptions, sockets).admin()
  const connecting = admin.connect().then(
    () => 'connected',
    () => 'failed',
  )
  await once(hung, 'connection')
  view.isHungFenced = true
  // The call must fail before the request timeout of kafkajs, which is 8 s.
  expect(await Promise.race([connecting, sleep(5_000, 'late')])).toBe('failed')
  await admin.disconnect()
  sockets.close()
})
