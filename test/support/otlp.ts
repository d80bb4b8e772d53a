import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { gunzipSync } from 'node:zlib'
import { until } from './stack.ts'

/** A span as an OTLP receiver decodes it. */
export interface ReceivedSpan {
  readonly traceId: string
  readonly id: string
  readonly parentId: string
  readonly name: string
  readonly kind: number
  readonly startMs: number
  readonly endMs: number
  readonly attributes: Readonly<Record<string, unknown>>
  readonly links: readonly { readonly traceId: string; readonly id: string }[]
  readonly isError: boolean
  /** Message of the status. Empty for a span without an error. */
  readonly statusMessage: string
  readonly service: unknown
}

export interface OtlpReceiver extends AsyncDisposable {
  readonly url: string
  readonly spans: readonly ReceivedSpan[]
  readonly requests: readonly { readonly path: string; readonly headers: NodeJS.Dict<string | string[]> }[]
  /** HTTP status of all further answers, to simulate a failing receiver. Default: 200. */
  status: number
  /** Waits until a trace contains spans of all the names and none with a missing parent, then returns its spans. */
  tree(traceId: string, names: readonly string[], withinMs?: number): Promise<ReceivedSpan[]>
}

/** Starts an OTLP/HTTP receiver. The receiver has its own Protobuf decoder, so that tests detect errors in the encoder of the product. */
export async function startOtlpReceiver(): Promise<OtlpReceiver> {
  const spans: ReceivedSpan[] = []
  const requests: OtlpReceiver['requests'][number][] = []
  const server = createServer((req, res) => {
    const chunks: Buffer[] = []
    req.on('data', (chunk) => chunks.push(chunk))
    req.on('end', () => {
      requests.push({ path: req.url ?? '', headers: req.headers })
      const body = Buffer.concat(chunks)
      if (receiver.status === 200)
        spans.push(...spansOf(req.headers['content-encoding'] === 'gzip' ? gunzipSync(body) : body))
      res.writeHead(receiver.status).end()
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const receiver: OtlpReceiver = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    spans,
    requests,
    status: 200,
    async tree(traceId, names, withinMs = 30_000) {
      const own = () => spans.filter((span) => span.traceId === traceId)
      const isWhole = () => {
        const has = new Set(own().map(({ name }) => name))
        return names.every((name) => has.has(name)) && orphansOf(own()).length === 0
      }
      await until(isWhole, { withinMs }).catch(() => {
        throw new Error(`the trace never became one tree:\n${treeText(own())}\norphans: ${treeText(orphansOf(own()))}`)
      })
      return own()
    },
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
  return receiver
}

/** Spans whose parent is missing. A root span, which names no parent, is not an orphan. */
export function orphansOf(spans: readonly ReceivedSpan[]): ReceivedSpan[] {
  const ids = new Set(spans.map(({ id }) => id))
  return spans.filter(({ parentId }) => parentId !== '' && !ids.has(parentId))
}

/** The spans as an indented list, in order of start. */
export function treeText(spans: readonly ReceivedSpan[], parentId?: string, depth = 0): string {
  const ids = new Set(spans.map(({ id }) => id))
  return spans
    .filter((span) => (parentId === undefined ? !ids.has(span.parentId) : span.parentId === parentId))
    .toSorted((a, b) => a.startMs - b.startMs)
    .map(
      (span) =>
        `${'  '.repeat(depth)}${span.name} ${(span.endMs - span.startMs).toFixed(1)} ms ${JSON.stringify(span.attributes)}\n` +
        treeText(spans, span.id, depth + 1),
    )
    .join('')
}

type Field = { readonly field: number; readonly value: bigint | Buffer }

/** Fields of a Protobuf message. Varints and fixed64 are numbers, anything else is bytes. */
function* fieldsOf(bytes: Buffer): Generator<Field> {
  let at = 0
  const varint = () => {
    for (let [value, shift] = [0n, 0n]; ; shift += 7n) {
      const byte = bytes[at++] ?? 0
      value |= BigInt(byte & 0x7f) << shift
      if (byte < 0x80) return value
    }
  }
  while (at < bytes.length) {
    const tag = Number(varint())
    const [field, wire] = [tag >> 3, tag & 7]
    if (wire === 0) yield { field, value: varint() }
    else {
      const length = wire === 2 ? Number(varint()) : wire === 1 ? 8 : 4
      if (at + length > bytes.length) throw new Error('a field is longer than its message')
      yield { field, value: bytes.subarray(at, at + length) }
      at += length
    }
  }
}

const sub = (bytes: Buffer, field: number) =>
  [...fieldsOf(bytes)].filter((one) => one.field === field).map(({ value }) => value as Buffer)

function attributeValueOf(bytes: Buffer): unknown {
  const [one] = fieldsOf(bytes)
  if (!one) return undefined
  const { field, value } = one
  if (field === 1) return String(value)
  if (field === 2) return value !== 0n
  if (field === 3) return Number(value)
  if (field === 4) return (value as Buffer).readDoubleLE()
  return sub(value as Buffer, 1).map(attributeValueOf)
}

function attributesOf(bytes: Buffer, field: number): Record<string, unknown> {
  const pairs = sub(bytes, field).map((pair) => [String(sub(pair, 1)[0]), attributeValueOf(sub(pair, 2)[0] as Buffer)])
  return Object.fromEntries(pairs)
}

function spansOf(request: Buffer): ReceivedSpan[] {
  return sub(request, 1).flatMap((resourceSpans) => {
    const service = attributesOf(sub(resourceSpans, 1)[0] as Buffer, 1)['service.name']
    const spans = sub(resourceSpans, 2).flatMap((scope) => sub(scope, 2))
    return spans.map((span) => {
      const text = (field: number) => sub(span, field)[0]
      const time = (field: number) => Number((text(field) as Buffer).readBigUInt64LE() / 1_000n) / 1_000
      const kind = [...fieldsOf(span)].find(({ field }) => field === 6)?.value
      return {
        traceId: text(1)?.toString('hex') ?? '',
        id: text(2)?.toString('hex') ?? '',
        parentId: text(4)?.toString('hex') ?? '',
        name: String(text(5)),
        kind: Number(kind),
        startMs: time(7),
        endMs: time(8),
        attributes: attributesOf(span, 9),
        links: sub(span, 13).map((link) => ({
          traceId: sub(link, 1)[0]?.toString('hex') ?? '',
          id: sub(link, 2)[0]?.toString('hex') ?? '',
        })),
        isError: sub(span, 15).length > 0,
        statusMessage: String(sub(sub(span, 15)[0] ?? Buffer.alloc(0), 2)[0] ?? ''),
        service,
      }
    })
  })
}
