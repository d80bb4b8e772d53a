import type { BatchPartRange, BatchProblem, BatchRequest } from '#schemas/batches/batch.ts'
import { LineChecker } from '#services/ingress/batches/check.ts'
import { type Line, linesOf } from '#services/ingress/batches/lines.ts'
import { PART_REQUESTS } from '#services/ingress/batches/parts.ts'
import type { Caller } from '#services/ingress/endpoints/endpoint.ts'
import { findEndpoint, requireModelOf } from '#services/ingress/endpoints/endpoints.ts'
import { ServiceError } from '#shared/error.ts'
import { runYielding } from '#shared/yielding.ts'
import type { BatchTools } from './tools.ts'
import { callerOf } from './tools.ts'

/** Maximum problems that are reported. */
const PROBLEMS_MAX = 100

/** Plan of a batch: the parts to run, or the problems of its lines. */
export interface Plan {
  readonly requests: number
  /** Model of all requests; null if they name none. */
  readonly model: string | null
  readonly parts: readonly BatchPartRange[]
  /** If there is any problem, then no request runs. */
  readonly problems: readonly BatchProblem[]
}

/** Validates every line of a batch and divides them into parts. No lines are kept in memory. */
export async function planBatch(
  tools: BatchTools,
  request: BatchRequest,
  tenant: string,
  signal: AbortSignal,
): Promise<Plan> {
  const { dialect, endpoint, input } = request
  const { lineBytesMax, context } = tools
  const checker = new LineChecker({ dialect, endpoint, lineBytesMax })
  const problems: BatchProblem[] = []
  const parts: BatchPartRange[] = []
  for await (const line of linesOf(context.blobs, input, lineBytesMax)) {
    const isFirst = checker.count === 0
    const found = await runYielding(checker.check(line), signal)
    const problem =
      found ?? (isFirst ? modelProblem(tools, callerOf(request, tenant), request, checker, line) : undefined)
    if (problem) problems.push(problem)
    if (problems.length >= PROBLEMS_MAX || problem?.code === 'too_many_requests') break
    addTo(parts, line)
  }
  const end = checker.end()
  if (end) problems.push(end)
  return { requests: checker.count, model: checker.model ?? null, parts: problems.length > 0 ? [] : parts, problems }
}

function addTo(parts: BatchPartRange[], { start, end, number: line }: Line): void {
  const last = parts.at(-1)
  if (last && last.requests < PART_REQUESTS) parts[parts.length - 1] = { ...last, end, requests: last.requests + 1 }
  else parts.push({ start, end, line, requests: 1 })
}

/** All requests name the same model, so it is checked once. */
function modelProblem(
  { context }: BatchTools,
  caller: Caller,
  request: BatchRequest,
  { model }: LineChecker,
  { number: line }: Line,
): BatchProblem | undefined {
  if (model === undefined) return undefined
  try {
    requireModelOf(findEndpoint(request.endpoint), context, caller, model)
    return undefined
  } catch (error) {
    if (!(error instanceof ServiceError)) throw error
    return { code: error.code, message: error.message, param: 'body.model', line }
  }
}
