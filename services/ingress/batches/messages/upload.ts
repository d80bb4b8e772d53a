import { createHash } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { LineChecker } from '#services/ingress/batches/check.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { requireFiles } from '#services/ingress/calls/files.ts'
import { HELD_PER_BYTE } from '#shared/capacity/byte-budgets.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { newAttachmentKey, newJobId } from '#shared/store/job-id.ts'
import { RequestsReader } from './requests.ts'

export interface UploadedRequests {
  readonly input: string
  readonly bytes: number
  readonly requests: number
  /** Hash of all bytes. Equal uploads have the same hash, which becomes part of the idempotency fingerprint. */
  readonly sha256: string
}

const LINE_FEED = Buffer.from('\n')

/**
 * Reads the body of `POST /v1/messages/batches` while it arrives. Each request is validated and written as a line to a
 * blob, which is recorded in `call.uploads`. At most one request is in memory.
 *
 * @throws ServiceError for the first invalid request, with its index in `param`; `request_too_large`, `request_timeout`
 */
export async function readRequests(
  context: IngressContext,
  call: Call,
  req: IncomingMessage,
): Promise<UploadedRequests> {
  requireFiles(context)
  refuseOtherTypes(req)
  const { bodyBytesMax: lineBytesMax } = context.config
  const reader = new RequestsReader(lineBytesMax)
  const checker = new LineChecker({ dialect: 'messages', lineBytesMax })
  const hash = createHash('sha256')
  let bytes = 0
  async function* lines(): AsyncGenerator<Buffer> {
    for await (const piece of piecesOf(context, req)) {
      hash.update(piece)
      for (const line of await runYielding(checkedLines(reader, checker, piece))) {
        bytes += line.length
        yield line
      }
      call.held.hold(reader.held * HELD_PER_BYTE)
    }
    reader.end()
    if (checker.end()) throw new ServiceError('empty_array', 'requests: expected at least one.', { param: 'requests' })
  }
  const input = newAttachmentKey(newJobId())
  call.uploads.add(input)
  await call.storage.over(context.blobs).put(input, lines())
  return { input, bytes, requests: checker.count, sha256: hash.digest('hex') }
}

function* checkedLines(reader: RequestsReader, checker: LineChecker, piece: Buffer): Generator<undefined, Buffer[]> {
  const lines: Buffer[] = []
  for (const bytes of reader.push(piece)) {
    if (bytes) {
      const nth = checker.count
      const problem = yield* checker.check({ number: nth + 1, start: 0, end: 0, bytes })
      if (problem) {
        const param = problem.param === null ? `requests.${nth}` : `requests.${nth}.${problem.param}`
        throw new ServiceError('invalid_value', `${param}: ${problem.message}`, { param })
      }
      lines.push(bytes, LINE_FEED)
    }
    yield
  }
  return lines
}

async function* piecesOf({ config }: IngressContext, req: IncomingMessage): AsyncGenerator<Buffer> {
  const { fileBytesMax, bodyStallMs } = config
  const tooLarge = () =>
    new ServiceError('request_too_large', `The body is larger than the ${fileBytesMax} bytes that a batch may have.`)
  if (Number(req.headers['content-length']) > fileBytesMax) throw tooLarge()
  const stall = Promise.withResolvers<never>()
  stall.promise.catch(() => {})
  const timer = setTimeout(
    () => stall.reject(new ServiceError('request_timeout', 'The body stopped arriving.')),
    bodyStallMs,
  )
  const pieces = req.iterator({ destroyOnReturn: false })
  try {
    for (let bytes = 0; ; ) {
      timer.refresh()
      const next = await Promise.race([pieces.next(), stall.promise])
      if (next.done) return
      bytes += next.value.length
      if (bytes > fileBytesMax) throw tooLarge()
      yield next.value
    }
  } catch (error) {
    if (error instanceof ServiceError) throw error
    throw new ServiceError('request_timeout', 'The body ended before it was complete.', { cause: error })
  } finally {
    clearTimeout(timer)
    // The iterator removes its listeners only when it returns. Until then, resume() does not discard the rest of the
    // body.
    void pieces
      .return?.()
      .catch(() => {})
      .then(() => req.resume())
  }
}

function refuseOtherTypes({ headers }: IncomingMessage): void {
  const [type] = (headers['content-type'] ?? '').split(';')
  if (type?.trim().toLowerCase() !== 'application/json') {
    throw new ServiceError('unsupported_media_type', 'Expected Content-Type application/json.')
  }
  if ((headers['content-encoding'] ?? 'identity').trim().toLowerCase() === 'identity') return
  throw new ServiceError(
    'unsupported_media_type',
    'Batches cannot be compressed. Send the body without Content-Encoding.',
  )
}
