import { z } from 'zod'
import { ServiceError } from '#shared/error.ts'
import type { AttemptContext, Handler } from '#shared/kinds/kind.ts'
import type { History } from './history.ts'
import type { SimulatedProcess } from './simulated-process.ts'

/** What a job does on its worker; travels as its body. */
export interface Script {
  readonly ref: string
  readonly tokens: number
  readonly tokenMs: number
  /** How many of its first attempts fail, after one token, and whether trying again can help. */
  readonly failures: number
  readonly isRetryable: boolean
  /** It ends the process that runs it. */
  readonly isPoison: boolean
  /** It never ends by itself. */
  readonly isEndless: boolean
  /** Characters of each piece of output beside its name. */
  readonly padding: number
}

/** One execution, as seen in the process that ran it. Times are those of the database. */
export interface Execution {
  readonly jobId: string
  readonly attempt: number
  readonly process: SimulatedProcess
  readonly startedAtMs: number
  /** Undefined while it runs, and for ever when its process died. */
  endedAtMs: number | undefined
}

/** What a piece of output looks like. */
interface Said {
  readonly text: string
}

/** The whole output of an attempt: it names the attempt, so that output of another one shows. */
export function textOf(script: Script, attempt: number): string {
  return Array.from({ length: script.tokens }, (_, token) => `${attempt}.${token} ${'.'.repeat(script.padding)}`).join(
    '',
  )
}

/** Witnesses what really ran where and when. */
export class Witness {
  readonly executions: Execution[] = []
  readonly #history: History
  readonly #nowMs: () => number

  constructor(history: History, nowMs: () => number) {
    this.#history = history
    this.#nowMs = nowMs
  }

  /** The kind of job that every worker of the simulation runs. */
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

  async *#run(process: SimulatedProcess, script: Script, context: AttemptContext): AsyncGenerator<Said> {
    const [jobId = '', number] = context.idempotencyKey.split(':')
    const attempt = Number(number)
    const execution: Execution = { jobId, attempt, process, startedAtMs: this.#nowMs(), endedAtMs: undefined }
    this.executions.push(execution)
    this.#history.note(jobId, () => `${process.name} begins attempt ${attempt}`)
    try {
      yield* this.#say(process, script, attempt, context)
    } finally {
      execution.endedAtMs = this.#nowMs()
      const why = context.signal.aborted ? ` (${context.signal.reason})` : ''
      this.#history.note(jobId, () => `${process.name} ends attempt ${attempt}${why}`)
    }
  }

  async *#say(process: SimulatedProcess, script: Script, attempt: number, context: AttemptContext) {
    const { signal, onProgress } = context
    for (let token = 0; token < script.tokens || script.isEndless; token++) {
      await pause(script.tokenMs, signal)
      if (token === 1 && script.isPoison) process.kill()
      if (token === 1 && attempt <= script.failures) {
        throw new ServiceError(script.isRetryable ? 'upstream_error' : 'upstream_refused', 'The script wants it.')
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
