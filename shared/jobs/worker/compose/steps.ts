import { createHash } from 'node:crypto'
import type { DurableJob } from '#schemas/durable-job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { ServiceError } from '#shared/error.ts'
import { BODY_BYTES_MAX } from '#shared/jobs/body.ts'
import type { OwnerWrites } from '#shared/jobs/worker/owner-writes.ts'
import { readJson } from '#shared/json/read.ts'
import { writeJson } from '#shared/json/write.ts'
import { type Cost, STEP_BYTES_MAX, type StepResult } from '#shared/kinds/composition.ts'
import type { NewStep, StepOutput } from '#shared/store/family.ts'
import { newAttachmentKey } from '#shared/store/job-id.ts'
import type { NewEvent, Store } from '#shared/store/store.ts'
import { runYielding } from '#shared/yielding.ts'

/** Steps of one job. */
const STEPS_MAX = 1_000

/** Characters of what a step is asked for that are kept beside it, and of one that is longer. */
const INPUT_CHARS_MAX = 64 * 1024
const INPUT_SHOWN_CHARS = 4 * 1024

/** What {@link Steps} need. */
export interface StepsOptions {
  /** As it was claimed. */
  readonly job: Pick<DurableJob, 'id' | 'steps'>
  readonly store: Store
  readonly blobs: Blobs
  readonly writes: OwnerWrites
  /** Output and progress that wait to be written: they go along with a step. */
  readonly takeOutput: () => NewEvent[]
  readonly signal: AbortSignal
}

/** What one step gave, and its cost. */
interface Done {
  readonly value: unknown
  readonly cost: Cost
}

/** The steps of one attempt: those that an attempt before has committed are not done again. */
export class Steps {
  readonly #options: StepsOptions
  readonly #asked = new Map<string, Promise<Done>>()
  #count: number

  constructor(options: StepsOptions) {
    this.#options = options
    this.#count = options.job.steps
  }

  /**
   * Does a step, or gives what it gave. The same step asked for twice is done once.
   *
   * @param onCost Hears its cost, once.
   * @param output Goes along with the step, and is dropped where an attempt before has committed it.
   * @throws ServiceError `invalid_request` beyond the bounds of a job
   */
  async do(
    kind: string,
    input: unknown,
    run: Run,
    onCost: (cost: Cost) => void,
    output: readonly NewEvent[] = [],
  ): Promise<unknown> {
    const { key, text } = await runYielding(keyOf(kind, input))
    let done = this.#asked.get(key)
    if (!done) {
      done = this.#once({ kind, key, input: text }, run, output)
      this.#asked.set(key, done)
      done.then(
        ({ cost }) => onCost(cost),
        () => this.#asked.delete(key),
      )
    }
    return (await done).value
  }

  /** What a step gave that an attempt has committed; undefined where none has. */
  async find(kind: string, input: unknown): Promise<unknown> {
    const { key } = await runYielding(keyOf(kind, input))
    const asked = this.#asked.get(key)
    return asked ? (await asked).value : (await this.#findKept(key))?.value
  }

  async #findKept(key: string): Promise<Done | undefined> {
    const { job, blobs, store, writes } = this.#options
    const kept = job.steps > 0 ? await writes.read(() => store.findStep(job.id, key)) : undefined
    return kept && { cost: kept.cost, value: await valueOfOutput(kept.output, blobs) }
  }

  async #once(asked: Pick<NewStep, 'kind' | 'key' | 'input'>, run: Run, told: readonly NewEvent[]): Promise<Done> {
    const { job, blobs, signal, store, writes } = this.#options
    const kept = await this.#findKept(asked.key)
    if (kept) return kept
    signal.throwIfAborted()
    if (this.#count >= STEPS_MAX) throw tooMuch(`more than ${STEPS_MAX} steps`)
    this.#count++
    const { value, cost = {} } = await run(signal)
    const { output, blobBytes } = await outputOf(job.id, value, blobs)
    const moved = await writes.write(() => {
      const waiting = [...told, ...this.#options.takeOutput()]
      return (held) => store.addStep(held, { ...asked, output, blobBytes, cost }, waiting)
    })
    if (!moved) throw lost(signal)
    return { value, cost }
  }
}

/** What a step gave, from its row or from its blob. */
export async function valueOfOutput(output: StepOutput, blobs: Blobs): Promise<unknown> {
  return 'blob' in output ? await runYielding(readJson(await blobs.get(output.blob))) : output.value
}

type Run = (signal: AbortSignal) => Promise<StepResult<unknown>>

/** Why a composed job goes no further here: whoever has lost it, or is aborted, says nothing more. */
export function lost(signal: AbortSignal): unknown {
  return signal.aborted ? signal.reason : new ServiceError('internal_error', 'The job is no longer run here.')
}

/** The failure of a job that asks for more than a job may. */
export function tooMuch(what: string): ServiceError {
  return new ServiceError('invalid_request', `A job may not have ${what}.`)
}

/** A large output goes into a blob that is named by its job. */
async function outputOf(jobId: string, value: unknown, blobs: Blobs) {
  const pieces: Buffer[] = []
  let bytes = 0
  await runYielding(
    (function* () {
      for (const piece of writeJson(value ?? null)) {
        pieces.push(Buffer.from(piece))
        bytes += pieces.at(-1)?.length ?? 0
        if (bytes > STEP_BYTES_MAX) throw tooMuch(`a step that gives more than ${STEP_BYTES_MAX} bytes`)
        yield
      }
    })(),
  )
  if (bytes <= BODY_BYTES_MAX) return { output: { value: value ?? null }, blobBytes: 0 }
  const blob = newAttachmentKey(jobId)
  await blobs.put(blob, Buffer.concat(pieces))
  return { output: { blob }, blobBytes: bytes }
}

/** What makes two steps the same one: their kind, and their input however its keys are sorted. @returns Its text as it is kept, too */
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
