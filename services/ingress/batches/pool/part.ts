import type { BatchPartEvent, BatchPartRequest, Refusals } from '#schemas/batches/batch.ts'
import { ERRORS } from '#schemas/error.ts'
import { readLine } from '#services/ingress/batches/check.ts'
import { type Line, linesOf } from '#services/ingress/batches/lines.ts'
import type { JobEndpoint } from '#services/ingress/endpoints/endpoint.ts'
import { findEndpoint } from '#services/ingress/endpoints/endpoints.ts'
import { ServiceError } from '#shared/error.ts'
import { inTurns } from '#shared/in-turns.ts'
import type { ChildJob, Composition } from '#shared/kinds/composition.ts'
import type { AttemptContext } from '#shared/kinds/kind.ts'
import { childJobId } from '#shared/store/job-id.ts'
import { writeLines } from './part-lines.ts'
import type { BatchTools } from './tools.ts'
import { callerOf } from './tools.ts'

/** What became of the lines of a part: those of which jobs were made, and the others. */
interface Submitted {
  readonly lines: readonly number[]
  readonly refused: Refusals
}

/** Has the requests of some lines of a batch done, each as a job of its own, and writes what came of them into blobs. */
export async function* runPart(
  tools: BatchTools,
  request: BatchPartRequest,
  { composition, idempotencyKey, signal, tenant }: AttemptContext,
): AsyncGenerator<BatchPartEvent> {
  if (!composition) throw new ServiceError('internal_error', 'A batch needs a durable job.')
  const [id = ''] = idempotencyKey.split(':')
  // One step, so that an attempt which only waited does not read the lines again.
  const { lines, refused } = await composition.step('submit', {}, async () => {
    return { value: await submitLines(tools, { request, tenant }, composition, signal) }
  })
  await composition.wait(lines.map((line) => childJobId(id, String(line))))
  const undone = { type: 'expired' } as const
  const result = await writeLines(tools, request, request.range, { id, refused, undone, composition })
  yield { type: 'part', result }
}

/** A part, and whose it is. */
interface OwnPart {
  readonly request: BatchPartRequest
  readonly tenant: string
}

async function submitLines(
  tools: BatchTools,
  part: OwnPart,
  composition: Composition,
  signal: AbortSignal,
): Promise<Submitted> {
  const { lineBytesMax, context } = tools
  const { request } = part
  const lines: number[] = []
  const refused: Refusals = {}
  for await (const line of linesOf(context.blobs, request.input, lineBytesMax, request.range)) {
    signal.throwIfAborted()
    const child = await childOf(tools, part, line).catch((error: unknown) => refusalOf(error))
    if (child instanceof ServiceError) refused[line.number] = child.toBody()
    else {
      await context.pace.line(() => composition.submit(child), signal)
      lines.push(line.number)
    }
  }
  return { lines, refused }
}

/** A line is refused for what is wrong with it; what may be gone a moment later is no reason. @throws The latter */
function refusalOf(thrown: unknown): ServiceError {
  const error = ServiceError.from(thrown)
  if (ERRORS[error.code].retry) throw error
  return error
}

/** The job of a line, checked as if it had come as a call. */
async function childOf(
  { context, lineBytesMax }: BatchTools,
  { request, tenant }: OwnPart,
  line: Line,
): Promise<ChildJob> {
  const { dialect, endpoint: path } = request
  const { customId, body } = await inTurns(readLine(line, { dialect, lineBytesMax }))
  const endpoint: JobEndpoint = findEndpoint(path)
  const prepared = await endpoint.prepare(context, callerOf(request, tenant), body)
  if (prepared.stream) {
    throw new ServiceError('unsupported_value', "'stream' must be false in a batch.", { param: 'stream' })
  }
  if (prepared.onCreated) {
    throw new ServiceError('unsupported_value', "Requests of a batch have no 'conversation'.", {
      param: 'conversation',
    })
  }
  const { name: kind, pool } = endpoint.kind
  return {
    key: String(line.number),
    endpoint: path,
    kind,
    pool,
    model: prepared.model,
    body: prepared.body,
    encode: prepared.encode,
    metadata: { custom_id: customId },
  }
}
