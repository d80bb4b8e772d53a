/**
 * The connections of kafkajs, by the address of their broker.
 *
 * The problem: a broker that hangs keeps its connections open, and accepts new ones. A client of kafkajs waits for its responses until the
 * request timeout, and connects to it again and again. The client also fetches nothing from healthy brokers, because a fetch loop starts
 * again only after all its requests have ended. Without fetches, the client sends no heartbeats, so that a rebalance of the group also
 * waits for this client.
 *
 * How it works: the controller of Kafka fences a broker that hangs, and {@link KafkaCluster} detects this from the metadata. Four times per second,
 * the connections to fenced brokers are closed. New connections to them fail at once, and request new metadata. kafkajs therefore treats the broker
 * as dead. The pending requests are rejected, and the metadata with the new leaders is loaded.
 *
 * At the same interval, the numbers of sent and received bytes are compared with the previous ones. If requests were sent to a broker and
 * no bytes arrived within {@link SILENT_TICKS} comparisons, then the metadata is requested at once. A live broker sends bytes more often,
 * because it answers a fetch without records after half a second.
 */
import { connect, isIP, Socket } from 'node:net'
import { connect as connectTls } from 'node:tls'
import type { ISocketFactory } from 'kafkajs'

const KEEP_ALIVE_MS = 60_000
const TICK_MS = 250
const SILENT_TICKS = 5

/** The part of the cluster view that decides which connections are closed. */
interface View {
  isFenced(host: string, port: number): boolean
  suspect(): void
}

interface Connection {
  readonly socket: Socket
  /** True after the handshakes of TCP and TLS. */
  isOpen: boolean
  read: number
  written: number
}

interface Broker {
  readonly host: string
  readonly port: number
  readonly connections: Set<Connection>
  /** Number of comparisons of the byte counts since requests were sent and nothing was received. 0 if no response is expected. */
  silentTicks: number
}

export class BrokerSockets {
  readonly #view: View
  readonly #brokers = new Map<string, Broker>()
  readonly #timer: NodeJS.Timeout

  constructor(view: View, tickMs = TICK_MS) {
    this.#view = view
    this.#timer = setInterval(() => this.#compare(), tickMs).unref()
  }

  /** Opens the connections of kafkajs. Has the same effect as the default factory of kafkajs, except for fenced brokers. */
  readonly factory: ISocketFactory = ({ host, port, ssl, onConnect }) => {
    if (this.#view.isFenced(host, port)) {
      this.#view.suspect()
      return refused(host, port)
    }
    // The TLS extension SNI permits host names only (RFC 6066 section 3).
    const name = isIP(host) ? {} : { servername: host }
    const onOpen = () => {
      connection.isOpen = true
      onConnect()
    }
    const socket = ssl ? connectTls({ host, port, ...name, ...ssl }, onOpen) : connect({ host, port }, onOpen)
    const connection = this.#track(host, port, socket)
    socket.setKeepAlive(true, KEEP_ALIVE_MS)
    return socket
  }

  close(): void {
    clearInterval(this.#timer)
  }

  #track(host: string, port: number, socket: Socket): Connection {
    const address = `${host}:${port}`
    const broker = this.#brokers.get(address) ?? { host, port, connections: new Set(), silentTicks: 0 }
    this.#brokers.set(address, broker)
    const connection = { socket, isOpen: false, read: socket.bytesRead, written: socket.bytesWritten }
    broker.connections.add(connection)
    socket.once('close', () => {
      broker.connections.delete(connection)
      if (broker.connections.size === 0 && this.#brokers.get(address) === broker) this.#brokers.delete(address)
    })
    return connection
  }

  #compare(): void {
    let isSilent = false
    for (const broker of this.#brokers.values()) {
      if (this.#view.isFenced(broker.host, broker.port)) {
        for (const connection of broker.connections) close(connection, broker)
        continue
      }
      const { hasRead, hasWritten } = changesOf(broker)
      if (hasRead) broker.silentTicks = 0
      else if (hasWritten || broker.silentTicks > 0) broker.silentTicks++
      isSilent ||= broker.silentTicks >= SILENT_TICKS
    }
    if (isSilent) this.#view.suspect()
  }
}

function changesOf({ connections }: Broker) {
  let [hasRead, hasWritten] = [false, false]
  for (const connection of connections) {
    const { bytesRead, bytesWritten } = connection.socket
    hasRead ||= bytesRead > connection.read
    hasWritten ||= bytesWritten > connection.written
    Object.assign(connection, { read: bytesRead, written: bytesWritten })
  }
  return { hasRead, hasWritten }
}

function close({ socket, isOpen }: Connection, { host, port }: Broker): void {
  // The Kafka client ends an attempt to connect only at the event `error`, and an open connection at the event `end`. A destroyed socket
  // does not emit `end`, so `end` is emitted here.
  if (!isOpen) return void socket.destroy(refusal(host, port))
  socket.destroy()
  socket.emit('end')
}

function refused(host: string, port: number): Socket {
  const socket = new Socket()
  process.nextTick(() => socket.destroy(refusal(host, port)))
  return socket
}

function refusal(host: string, port: number): Error {
  return Object.assign(new Error(`The broker ${host}:${port} is fenced`), { code: 'ECONNREFUSED' })
}
