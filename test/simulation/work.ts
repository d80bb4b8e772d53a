import { z } from 'zod'
import type { Composition } from '#shared/kinds/composition.ts'
import type { AttemptContext, Handler } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { composeKind } from '../support/jobs/compose-kind.ts'
import type { History } from './history.ts'
import type { SimulatedProcess } from './simulated-process.ts'

/** Behaviour of a job when a worker runs it. The script is the body of the job. */
export interface Script {
  readonly ref: string
  readonly tokens: number
  readonly tokenMs: number
  /** Number of attempts that fail after one token. `isRetryable` states whether the error allows a retry. */
  readonly failures: number
  readonly isRetryable: boolean
  /** True if the job crashes each process that runs it. */
  readonly isPoison: boolean
  /** True if the job runs until it is cancelled or times out. */
  readonly isEndless: boolean
  /** Number of characters that are added to each piece of output. */
  readonly padding: number
}

/** One execution of a job, recorded inside the worker that ran it. Times are those of the database's clock. */
export interface Execution {
  readonly jobId: string
  readonly attempt: number
  readonly process: SimulatedProcess
  readonly startedAtMs: number
  /** Undefined while the job runs. Stays undefined if the process dies. */
  endedAtMs: number | undefined
}

/** Record of a step that an attempt has run. */
export interface Doing {
  readonly jobId: string
  readonly attempt: number
  readonly step: number | 'sum'
}

/** Durations of a step in ms. The job id selects one of them. */
const STEP_MS = [0, 60, 800] as const

/** A piece of output. */
interface Said {
  readonly text: string
}

/** Returns the expected output of an attempt. Each piece contains the number of the attempt, so that output of another attempt is detected. */
export function textOf(script: Script, attempt: number): string {
  return Array.from({ length: script.tokens }, (_, token) => `${attempt}.${token} ${'.'.repeat(script.padding)}`).join(
    '',
  )
}

/** Records which process ran which attempt, and when. */
export class Witness {
  readonly executions: Execution[] = []
  readonly doings: Doing[] = []
  readonly #history: History
  readonly #nowMs: () => number

  constructor(history: History, nowMs: () => number) {
    this.#history = history
    this.#nowMs = nowMs
  }

  /** Returns the handler of ordinary jobs for a worker in the given process. */
  kindIn(process: SimulatedProcess): Handler {
    return {
      name: 'say',
      pool: 'inference',
      request: z.unknown(),
      parse: (body) => body,
      run: (body, context) => this.#run(process, body as Script, context),
      merge: (a, b) => ({ text: (a as Said).text + (b as Said).text }),
      isOutput: () => true,
      answer: () => ({
        whole: (events) => ({ text: events.map((event) => (event as Said).text).join('') }),
        open: () => ({ push: (event) => [{ data: JSON.stringify(event) }], end: () => [] }),
      }),
    }
  }

  /** Returns the handler of composed jobs for a worker in the given process. */
  composingIn(process: SimulatedProcess): Handler {
    const kind = composeKind(async (step, signal) => {
      const { attempt } = this.executions.findLast(
        (run) => run.jobId === step.job && run.process === process,
      ) as Execution
      this.doings.push({ jobId: step.job, attempt, step: step.nth })
      this.#history.note(step.job, () => `${process.name} does step ${step.nth} in attempt ${attempt}`)
      await pause(
        STEP_MS[(step.job.charCodeAt(step.job.length - 1) + Number(step.nth === 'sum')) % STEP_MS.length] ?? 0,
        signal,
      )
    })
    return { ...kind, run: (body, context) => this.#compose(process, body, context, kind) }
  }

  async *#compose(process: SimulatedProcess, body: unknown, context: AttemptContext, kind: Handler) {
    const execution = this.#begin(process, context)
    const composition = context.composition && this.#watched(context.composition, execution)
    try {
      yield* kind.run(body, { ...context, composition })
    } finally {
      this.#end(process, execution, context)
    }
  }

  /** A job that waits for its children releases its slot. The wait therefore counts as the end of the execution. */
  #watched(composition: Composition, execution: Execution): Composition {
    return {
      step: (kind, input, run) => composition.step(kind, input, run),
      find: (kind, input) => composition.find(kind, input),
      publish: (key, events) => composition.publish(key, events),
      publishStored: (key, events) => composition.publishStored(key, events),
      published: (key) => composition.published(key),
      submit: (child) => composition.submit(child),
      waitFor: async (ids) => {
        execution.endedAtMs = this.#nowMs()
        const ends = await composition.waitFor(ids)
        execution.endedAtMs = undefined
        return ends
      },
      wait: (ids) => composition.wait(ids),
      endOf: (id, parent) => composition.endOf(id, parent),
      get spent() {
        return composition.spent
      },
      get wrapUpAtMs() {
        return composition.wrapUpAtMs
      },
      cancelled: composition.cancelled,
    }
  }

  async *#run(process: SimulatedProcess, script: Script, context: AttemptContext): AsyncGenerator<Said> {
    const execution = this.#begin(process, context)
    try {
      yield* this.#say(process, script, execution.attempt, context)
    } finally {
      this.#end(process, execution, context)
    }
  }

  #begin(process: SimulatedProcess, { idempotencyKey }: AttemptContext): Execution {
    const [jobId = '', number] = idempotencyKey.split(':')
    const attempt = Number(number)
    const execution: Execution = { jobId, attempt, process, startedAtMs: this.#nowMs(), endedAtMs: undefined }
    this.executions.push(execution)
    this.#history.note(jobId, () => `${process.name} begins attempt ${attempt}`)
    return execution
  }

  #end(process: SimulatedProcess, execution: Execution, { signal }: AttemptContext): void {
    execution.endedAtMs = this.#nowMs()
    const why = signal.aborted ? ` (${signal.reason})` : ''
    this.#history.note(execution.jobId, () => `${process.name} ends attempt ${execution.attempt}${why}`)
  }

  async *#say(process: SimulatedProcess, script: Script, attempt: number, context: AttemptContext) {
    const { signal, onProgress } = context
    for (let token = 0; token < script.tokens || script.isEndless; token++) {
      await pause(script.tokenMs, signal)
      if (token === 1 && script.isPoison) process.kill()
      if (token === 1 && attempt <= script.failures) {
        throw new ServiceError(script.isRetryable ? 'upstream_error' : 'upstream_refused', 'scripted failure')
      }
      onProgress?.({ phase: 'saying', percent: null, message: `${token}` })
      yield { text: `${attempt}.${token} ${'.'.repeat(script.padding)}` }
    }
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const onAbort = () => {
      clearTimeout(timer)
      reject(signal.reason)
    }
    if (signal.aborted) return reject(signal.reason)
    const timer = setTimeout(() => {
      signal.removeEventListener('abort', onAbort)
      resolve()
    }, ms)
    signal.addEventListener('abort', onAbort, { once: true })
  })
}
