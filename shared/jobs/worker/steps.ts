/*
 * Steps of one attempt of a composed job. A step that an earlier attempt committed is read instead of repeated.
 *
 * The identity of a step is a hash of its kind and its input as canonical JSON. A handler that runs again therefore finds its steps without numbering
 * them. The result is committed before the handler receives it. Within one attempt, an equal step runs once.
 *
 * The invariant: a crash repeats at most the external calls whose results were not committed yet.
 */

import { createHash } from 'node:crypto'
import type { DurableJob } from '#schemas/durable-job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { BODY_BYTES_MAX } from '#shared/jobs/body.ts'
import { readJson } from '#shared/json/read.ts'
import { writeJson } from '#shared/json/write.ts'
import { type Cost, STEP_BYTES_MAX, type StepRun } from '#shared/kinds/composition.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { type NewStep, newAttachmentKey, type StepOutput } from '#shared/store/jobs.ts'
import type { NewEvent, Store } from '#shared/store/store.ts'
import { attemptContext, tracing } from '#shared/telemetry/tracing.ts'
import type { OwnerWrites } from './owner-writes.ts'

const STEPS_MAX = 1_000

/** Maximum length of a recorded step input in characters, and the length to which a longer input is truncated. */
const INPUT_CHARS_MAX = 64 * 1024
const INPUT_SHOWN_CHARS = 4 * 1024

export interface StepsOptions {
  readonly job: Pick<DurableJob, 'id' | 'steps' | 'attempt' | 'traceparent'>
  readonly store: Store
  readonly blobs: Blobs
  readonly writes: OwnerWrites
  /** Called before a step is stored. Commits output events of the job until the rest fits into the write that stores the step. */
  readonly writeBacklog: () => Promise<void>
  readonly takeOutput: () => NewEvent[]
  readonly signal: AbortSignal
}

interface Done {
  readonly value: unknown
  readonly cost: Cost
}

export class Steps {
  readonly #options: StepsOptions
  readonly #requested = new Map<string, Promise<Done>>()
  #count: number

  constructor(options: StepsOptions) {
    this.#options = options
    this.#count = options.job.steps
  }

  /**
   * Runs a step, or returns its recorded result.
   *
   * @param onCost Called once with the cost of the step
   * @param output Events committed with the step. Dropped if an earlier attempt committed them
   * @throws ServiceError `invalid_request` beyond the limits of a job
   */
  async do(
    kind: string,
    input: unknown,
    run: StepRun<unknown>,
    onCost: (cost: Cost) => void,
    output: readonly NewEvent[] = [],
  ): Promise<unknown> {
    const { key, text } = await runYielding(keyOf(kind, input))
    let done = this.#requested.get(key)
    if (!done) {
      done = this.#once({ kind, key, input: text }, run, output)
      this.#requested.set(key, done)
      done.then(
        ({ cost }) => onCost(cost),
        () => this.#requested.delete(key),
      )
    }
    return (await done).value
  }

  async find(kind: string, input: unknown): Promise<unknown> {
    const { key } = await runYielding(keyOf(kind, input))
    const asked = this.#requested.get(key)
    return asked ? (await asked).value : (await this.#findKept(key))?.value
  }

  async #findKept(key: string): Promise<Done | undefined> {
    const { job, blobs, store, writes } = this.#options
    const kept = job.steps > 0 ? await writes.persist(() => store.findStep(job.id, key)) : undefined
    return kept && { cost: kept.cost, value: await valueOfOutput(kept.output, blobs) }
  }

  async #once(
    asked: Pick<NewStep, 'kind' | 'key' | 'input'>,
    run: StepRun<unknown>,
    published: readonly NewEvent[],
  ): Promise<Done> {
    const { job, blobs, signal, store, writes } = this.#options
    const kept = await this.#findKept(asked.key)
    if (kept) return kept
    signal.throwIfAborted()
    if (this.#count >= STEPS_MAX) throw tooMuch(`more than ${STEPS_MAX} steps`)
    this.#count++
    const { value, cost = {} } = await traced(asked.kind, job, (traceparent) => run(signal, traceparent))
    const { output, blobBytes } = await outputOf(job.id, value, blobs)
    await this.#options.writeBacklog()
    const moved = await writes.write(() => {
      const waiting = [...published, ...this.#options.takeOutput()]
      return (held) => store.addStep(held, { ...asked, output, blobBytes, cost }, waiting)
    })
    if (!moved) throw lost(signal)
    return { value, cost }
  }
}

export async function valueOfOutput(output: StepOutput, blobs: Blobs): Promise<unknown> {
  return 'blob' in output ? await runYielding(readJson(await blobs.get(output.blob))) : output.value
}

/**
 * Kinds of steps that get no trace span, because they only record a decision or an output. Dozens of such spans would hide the steps that take time.
 */
const UNTRACED: ReadonlySet<string> = new Set(['admit', 'clock', 'tell'])

/** Runs a step in a trace span whose parent is the span of the attempt. */
async function traced<T>(
  kind: string,
  { id, attempt, traceparent }: StepsOptions['job'],
  run: (traceparent: string | undefined) => Promise<T>,
): Promise<T> {
  const { tracer } = tracing
  const parent = tracer && !UNTRACED.has(kind) ? attemptContext(traceparent, id, attempt) : undefined
  const span = parent === undefined ? undefined : tracer?.start({ name: `step ${kind}`, kind: 'internal', parent })
  try {
    return await run(span?.traceparent)
  } catch (error) {
    span?.end(undefined, ServiceError.from(error).code)
    throw error
  } finally {
    span?.end()
  }
}

/**
 * Returns the error that ends an attempt of a composed job after the store has refused its write. If `signal` is aborted, then the error is the
 * abort reason. Otherwise another worker has claimed the job. In both cases, this attempt publishes no further event.
 */
export function lost(signal: AbortSignal): unknown {
  return signal.aborted ? signal.reason : new ServiceError('internal_error', 'Another worker runs the job now.')
}

export function tooMuch(what: string): ServiceError {
  return new ServiceError('invalid_request', `A job cannot have ${what}.`)
}

async function outputOf(jobId: string, value: unknown, blobs: Blobs) {
  const pieces: Buffer[] = []
  let bytes = 0
  await runYielding(
    (function* () {
      for (const piece of writeJson(value ?? null)) {
        pieces.push(Buffer.from(piece))
        bytes += pieces.at(-1)?.length ?? 0
        if (bytes > STEP_BYTES_MAX) throw tooMuch(`a step result of more than ${STEP_BYTES_MAX} bytes`)
        yield
      }
    })(),
  )
  if (bytes <= BODY_BYTES_MAX) return { output: { value: value ?? null }, blobBytes: 0 }
  const blob = newAttachmentKey(jobId)
  await blobs.put(blob, Buffer.concat(pieces))
  return { output: { blob }, blobBytes: bytes }
}

/** @returns Hash of kind and input, and input text for the record */
export function* keyOf(kind: string, input: unknown): Generator<undefined, { key: string; text: string }> {
  const hash = createHash('sha256').update(`${kind}\n`)
  let [text, length] = ['', 0]
  for (const piece of writeJson(input ?? null, { sortsKeys: true })) {
    hash.update(piece)
    length += piece.length
    if (text.length <= INPUT_CHARS_MAX) text += piece
    yield
  }
  const isWhole = text.length <= INPUT_CHARS_MAX
  const cut = () => JSON.stringify({ cut: text.slice(0, INPUT_SHOWN_CHARS).toWellFormed(), length })
  return { key: hash.digest('hex'), text: isWhole ? `{"value":${text}}` : cut() }
}
