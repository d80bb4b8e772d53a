import { Connection } from '../calls/connection.ts'
import type { Address } from '../calls/load.ts'
import { percentile } from '../figures/stats.ts'

/** What callers of one text each saw. Times in milliseconds. */
export interface EmbedFigures {
  readonly perSecond: number
  readonly p50: number
  readonly p99: number
  readonly failures: number
  readonly failure: string | undefined
}

/** Different texts that are sent in turn: more than callers, since equal texts in a batch are embedded once. */
const TEXTS = 4_096

/** Callers in a closed loop: each sends the next text when it has its vector, on a connection it keeps. */
export async function putEmbeddings(
  address: Address,
  model: string,
  callers: number,
  seconds: number,
): Promise<EmbedFigures> {
  const requests = Array.from({ length: TEXTS }, (_, i) => requestOf(address, model, i))
  const connections = await Promise.all(Array.from({ length: callers }, () => Connection.open(address.url)))
  const latencies: number[] = []
  let [next, failures] = [0, 0]
  let failure: string | undefined
  const startedAt = performance.now()
  const until = startedAt + seconds * 1_000
  const loop = async (connection: Connection) => {
    do {
      const sentAt = performance.now()
      const status = await connection.send(requests[next++ % TEXTS] as Buffer)
      if (status === 200) latencies.push(performance.now() - sentAt)
      else [failures, failure] = [failures + 1, `status ${status}`]
    } while (performance.now() < until)
  }
  try {
    await Promise.all(connections.map(loop))
  } finally {
    for (const connection of connections) connection.close()
  }
  const tookSeconds = (performance.now() - startedAt) / 1_000
  const [p50, p99] = [percentile(latencies, 0.5), percentile(latencies, 0.99)]
  return { perSecond: latencies.length / tookSeconds, p50, p99, failures, failure }
}

/** A call as the SDKs make it: one text of about forty tokens, base64. */
function requestOf({ url, key }: Address, model: string, number: number): Buffer {
  const input = `Document ${number}. ${'The quick brown fox jumps over the lazy dog near the river bank. '.repeat(3)}`
  const body = JSON.stringify({ model, input, encoding_format: 'base64' })
  const head = [
    'POST /v1/embeddings HTTP/1.1',
    `host: ${url.host}`,
    `authorization: Bearer ${key}`,
    'content-type: application/json',
    `content-length: ${Buffer.byteLength(body)}`,
  ]
  return Buffer.from(`${head.join('\r\n')}\r\n\r\n${body}`)
}
