import type {
  BatchEvent,
  BatchPartRange,
  BatchPartResult,
  BatchProblem,
  BatchRequest,
  BatchResult,
} from '#schemas/batches/batch.ts'
import { dropInput, FILES_MAX } from '#services/ingress/batches/files.ts'
import { type Line, LineChecker, linesOf } from '#services/ingress/batches/lines.ts'
import type { Caller, IngressContext } from '#services/ingress/calls/call.ts'
import { PART_REQUESTS, PARTS_IN_FLIGHT_MAX } from '#services/ingress/calls/child-counts.ts'
import { findEndpoint, requireModelOf } from '#services/ingress/endpoints/endpoints.ts'
import { startWorker } from '#shared/jobs/worker/worker.ts'
import { batch, batchPart } from '#shared/kinds/batch.ts'
import type { ChildEnd, ChildJob, Composition } from '#shared/kinds/composition.ts'
import { type AttemptContext, handle, type Progress } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import type { Ports } from '#shared/ports.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { childJobId } from '#shared/store/jobs.ts'
import { type FileStore, fileIdOf } from '#shared/store/records.ts'
import { callCost, NOTHING } from '#shared/usage/usage.ts'
import {
  NO_SUMS,
  type Outcome,
  outcomeOf,
  partBlob,
  runPart,
  SIDES,
  type Side,
  type Sums,
  sumOf,
  writeLines,
} from './part.ts'
import { type BatchTools, callerOf } from './tools.ts'

const PROBLEMS_MAX = 100

/**
 * A batch runs in parts of up to 100 requests. The results of this number of parts are recorded together as one step. A
 * resumed attempt therefore reads one record per group instead of one per part.
 */
const PARTS_PER_STEP = 5
/** Endpoint name in the jobs that run parts of a batch. No route has this path, so callers cannot use the endpoint. */
const PARTS_ENDPOINT = '/v1/batches/parts'

interface EndedPart extends Sums {
  readonly output_bytes: number
  readonly error_bytes: number
}

/**
 * Runs a batch as a composed job: validates the lines, runs the parts, and joins their results into files. Each stage
 * is a recorded step, so a resumed attempt repeats little work. If the batch is cancelled or reaches its time limit,
 * then partial results are written.
 */
async function* runBatch(
  tools: BatchTools,
  request: BatchRequest,
  { composition, idempotencyKey, onProgress, tenant }: AttemptContext,
): AsyncGenerator<BatchEvent> {
  if (!composition) throw new ServiceError('internal_error', 'A batch runs only as a durable job.')
  const [id = ''] = idempotencyKey.split(':')
  const run = new BatchRun(tools, request, {
    id,
    tenant,
    composition,
    onProgress: (progress) => onProgress?.(progress),
  })
  yield { type: 'batch', result: await run.result() }
}

interface RunOptions {
  readonly id: string
  readonly tenant: string
  readonly composition: Composition
  readonly onProgress: (progress: Progress) => void
}

class BatchRun {
  readonly #tools: BatchTools
  readonly #request: BatchRequest
  readonly #options: RunOptions
  readonly #composition: Composition

  constructor(tools: BatchTools, request: BatchRequest, options: RunOptions) {
    this.#tools = tools
    this.#request = request
    this.#options = options
    this.#composition = options.composition
  }

  async result(): Promise<BatchResult> {
    const plan = await this.#composition.step<Plan>('validate', {}, async (signal) => {
      const value = await planBatch(this.#tools, this.#request, this.#options.tenant, signal)
      return { value, cost: { requests: value.requests } }
    })
    if (plan.problems.length > 0) {
      await this.#dropInput()
      return failed(plan)
    }
    const parts = await this.#runParts(plan)
    const status = parts.length === plan.parts.length ? 'completed' : this.#isCancelled ? 'cancelled' : 'expired'
    const all = parts.length === plan.parts.length ? parts : await this.#cutParts(plan, parts)
    return await this.#joined(plan, all, status)
  }

  async #runParts(plan: Plan): Promise<EndedPart[]> {
    const ended: EndedPart[] = []
    for (let first = 0; first < plan.parts.length; first += PARTS_PER_STEP) {
      this.#reportProgress('in_progress', plan, ended)
      const recorded = await this.#composition.find<EndedPart[]>('group', { first })
      const group = recorded ?? (await this.#runGroup(plan, first))
      if (!group) break
      ended.push(...group)
    }
    return ended
  }

  async #runGroup(plan: Plan, first: number): Promise<EndedPart[] | undefined> {
    if (this.#isOver) return undefined
    const ids: string[] = []
    // Parts after this group are also submitted. Otherwise one slow part of the group would delay all later parts.
    for (let nth = first; nth < Math.min(first + PARTS_IN_FLIGHT_MAX, plan.parts.length); nth++) {
      ids.push(await this.#composition.submit(this.#childOf(nth, plan.parts[nth] as BatchPartRange)))
    }
    const own = ids.slice(0, PARTS_PER_STEP)
    await this.#composition.wait(own)
    const ends = await Promise.all(own.map((id) => this.#composition.endOf(id)))
    if (ends.includes(undefined) || (this.#isOver && ends.some((end) => end?.state !== 'completed'))) return undefined
    return await this.#composition.step('group', { first }, async () => {
      const value: EndedPart[] = []
      for (const [i, end] of ends.entries()) value.push(await this.#endedPart(plan, first + i, end as ChildEnd))
      return { value }
    })
  }

  async #endedPart(plan: Plan, nth: number, end: ChildEnd): Promise<EndedPart> {
    if (end.state === 'completed') return endedOf(end.result as BatchPartResult)
    return await this.#writePart(plan, nth, outcomeOf(end))
  }

  async #cutParts(plan: Plan, ended: readonly EndedPart[]): Promise<EndedPart[]> {
    const all = [...ended]
    this.#reportProgress('finalizing', plan, all)
    for (let nth = all.length; nth < plan.parts.length; nth++) {
      const end = await this.#composition.endOf(this.#idOf(nth))
      const isWhole = end?.state === 'completed'
      all.push(isWhole ? endedOf(end.result as BatchPartResult) : await this.#writePart(plan, nth, this.#undone))
    }
    return all
  }

  async #writePart(plan: Plan, nth: number, undone: Outcome): Promise<EndedPart> {
    const ends = { id: this.#idOf(nth), refused: {}, undone, composition: this.#composition }
    return await writeLines(this.#tools, this.#request, plan.parts[nth] as BatchPartRange, ends)
  }

  async #joined(plan: Plan, parts: readonly EndedPart[], status: BatchResult['status']): Promise<BatchResult> {
    this.#reportProgress('finalizing', plan, parts)
    const { id, tenant } = this.#options
    const ids = parts.map((_, nth) => this.#idOf(nth))
    const ended = await this.#composition.step('finalize', { status }, async () => {
      const finalizing_at_ms = Date.now()
      const files = await joinParts(this.#tools, this.#request, { id, tenant, ids, parts })
      return { value: { ...files, finalizing_at_ms } }
    })
    await dropParts(this.#tools, ids)
    // If the batch was cancelled or reached its time limit, then the input is kept. If this attempt fails, then the next attempt
    // needs the input to write the partial results again.
    if (status === 'completed') await this.#dropInput()
    const { counts, usage } = sumOf(parts)
    const cost_nanos = this.#costOf(plan, { counts, usage })
    return { status, model: plan.model, problems: [], counts, usage, cost_nanos, ...ended }
  }

  /**
   * Cost of the completed requests. Null if the model has no price, or a price per time, because usage contains only tokens. Null also if the lines have
   * several models, because usage is not divided by model.
   */
  #costOf(plan: Plan, { counts, usage }: Sums): number | null {
    const [model = '', ...others] = modelsOf(plan)
    if (others.length > 0) return null
    const { context } = this.#tools
    const { pool } = findEndpoint(context, this.#request.endpoint).kind
    const price = context.models.priceOf({ pool, model: context.models.find(model)?.id ?? '' })
    if (!price || price.per_minute_audio + price.per_second > 0) return null
    const { input_tokens, output_tokens, cached_tokens } = usage
    const ofTokens = callCost({ ...NOTHING, input_tokens, output_tokens, cached_tokens }, price, false)
    return ofTokens === undefined ? null : ofTokens + counts.completed * (callCost(NOTHING, price, true) ?? 0)
  }

  async #dropInput(): Promise<void> {
    const { context, files } = this.#tools
    await dropInput({ blobs: context.blobs, files }, this.#options.tenant, this.#request.input)
  }

  #childOf(nth: number, range: BatchPartRange): ChildJob {
    const { dialect, endpoint, input, rights, headers, answer_form } = this.#request
    const body = { dialect, endpoint, input, rights, headers, range, ...(answer_form !== undefined && { answer_form }) }
    return { key: String(nth), endpoint: PARTS_ENDPOINT, kind: 'batch_part', pool: 'batches', model: 'batch', body }
  }

  #idOf(nth: number): string {
    return childJobId(this.#options.id, String(nth))
  }

  #reportProgress(phase: 'in_progress' | 'finalizing', plan: Plan, parts: readonly Sums[]): void {
    const { requests } = plan
    const models = modelsOf(plan)
    const sums = sumOf(parts)
    const { completed, failed, cancelled, expired } = sums.counts
    const cost_nanos = this.#costOf(plan, sums)
    const done = completed + failed + cancelled + expired
    const counts = { total: requests, completed, failed: done - completed }
    const message = `${done} of ${requests} requests have ended.`
    this.#options.onProgress({
      ...{ phase, percent: Math.floor((100 * done) / requests), message, counts, usage: sums.usage },
      ...(models.length > 0 && { model: models.join(', ') }),
      ...(cost_nanos !== null && { cost_nanos }),
    })
  }

  get #undone(): Outcome {
    return { type: this.#isCancelled ? 'cancelled' : 'expired' }
  }

  get #isCancelled(): boolean {
    return this.#composition.cancelled.aborted
  }

  get #isOver(): boolean {
    return Date.now() >= this.#composition.wrapUpAtMs
  }
}

function endedOf({ counts, usage, output_bytes, error_bytes }: BatchPartResult): EndedPart {
  return { counts, usage, output_bytes, error_bytes }
}

function failed({ model, problems }: Plan): BatchResult {
  const files = { output_file_id: null, error_file_id: null, finalizing_at_ms: null }
  return { status: 'failed', model, problems: [...problems], ...NO_SUMS, ...files }
}

interface Joining {
  readonly id: string
  readonly tenant: string
  readonly ids: readonly string[]
  readonly parts: readonly { readonly output_bytes: number; readonly error_bytes: number }[]
}

/**
 * Writes the result files of a batch. A repeated call writes the same files again. If a file would have no lines, then
 * its id is null.
 */
async function joinParts(
  tools: BatchTools,
  request: BatchRequest,
  joining: Joining,
): Promise<{ output_file_id: string | null; error_file_id: string | null }> {
  const [output_file_id, error_file_id] = [
    await joinSide(tools, request, joining, 'output'),
    await joinSide(tools, request, joining, 'errors'),
  ]
  return { output_file_id, error_file_id }
}

async function dropParts({ context }: BatchTools, ids: readonly string[]): Promise<void> {
  for (const id of ids) for (const side of SIDES) await context.blobs.delete(partBlob(id, side))
}

async function joinSide(
  { context, files }: BatchTools,
  { keep_ms: keepMs }: BatchRequest,
  { id, tenant, ids, parts }: Joining,
  side: Side,
): Promise<string | null> {
  const { blobs } = context
  const bytesOf = (nth: number) => (side === 'output' ? parts[nth]?.output_bytes : parts[nth]?.error_bytes) ?? 0
  const bytes = parts.reduce((sum, _, nth) => sum + bytesOf(nth), 0)
  if (bytes === 0) return null
  async function* joined(): AsyncGenerator<Buffer> {
    for (const [nth, part] of ids.entries()) if (bytesOf(nth) > 0) yield* await blobs.open(partBlob(part, side))
  }
  const file = fileIdOf(id, side)
  await blobs.put(file, joined())
  const filename = `${id.replace('job_', 'batch_')}_${side}.jsonl`
  const row = { id: file, tenant, purpose: 'batch_output', filename, bytes, keepMs }
  // The project has already paid for these results, so they are stored even beyond the maximum number of files.
  await files.create(row, { filesMax: FILES_MAX * FILES_MAX })
  return file
}

function modelsOf({ model, models }: Plan): readonly string[] {
  return models ?? (model === null ? [] : [model])
}

interface Plan {
  readonly requests: number
  readonly model: string | null
  /** Models of the lines. Undefined in a plan of a previous version. */
  readonly models?: readonly string[]
  readonly parts: readonly BatchPartRange[]
  /** Invalid lines of the input. If there are any, then no request runs. */
  readonly problems: readonly BatchProblem[]
}

/** Validates every line of a batch, and divides the lines into parts of {@link PART_REQUESTS}. Only one line at a time is in memory. */
async function planBatch(tools: BatchTools, request: BatchRequest, tenant: string, signal: AbortSignal): Promise<Plan> {
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
  const { count: requests, model = null, models } = checker
  return { requests, model, models, parts: problems.length > 0 ? [] : parts, problems }
}

function addTo(parts: BatchPartRange[], { start, end, number: line }: Line): void {
  const last = parts.at(-1)
  if (last && last.requests < PART_REQUESTS) parts[parts.length - 1] = { ...last, end, requests: last.requests + 1 }
  else parts.push({ start, end, line, requests: 1 })
}

function modelProblem(
  { context }: BatchTools,
  caller: Caller,
  request: BatchRequest,
  { model }: LineChecker,
  { number: line }: Line,
): BatchProblem | undefined {
  if (model === undefined) return undefined
  try {
    requireModelOf(findEndpoint(context, request.endpoint), context, caller, model)
    return undefined
  } catch (error) {
    if (!(error instanceof ServiceError)) throw error
    return { code: error.code, message: error.message, param: 'body.model', line }
  }
}

/**
 * Starts the worker of the pool `batches`. The worker runs in the ingress process, because only the ingress can
 * validate calls (docs/internals/design.md, Composed jobs).
 */
export async function startBatches(ports: Ports, context: IngressContext, files: FileStore): Promise<Service> {
  const tools = { context, files, lineBytesMax: ports.config.bodyBytesMax }
  const kinds = {
    batch: handle(batch, (request, attempt) => runBatch(tools, request, attempt)),
    batch_part: handle(batchPart, (request, attempt) => runPart(tools, request, attempt)),
  }
  return await startWorker(ports, { name: 'batches', slots: ports.config.batchesSlots, kinds })
}
