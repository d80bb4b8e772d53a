import type { Expectation } from '../check/history.ts'
import { openRandom, type Random } from './random.ts'

/** One job of a run: its request, and the behaviour of its client. */
export interface PlannedJob {
  /** Idempotency key; also in the metadata of the job, so that its row can be found. */
  readonly key: string
  readonly call: { readonly endpoint: string; readonly body: object }
  readonly metadata: Readonly<Record<string, string>>
  readonly priority: 'normal' | 'low'
  /** Delay between submission and the scheduled start, in milliseconds. */
  readonly runInMs?: number
  /** Delay between acceptance and the cancel, in milliseconds. */
  readonly cancelAfterMs?: number
  /** Whether the job is submitted to both ingresses at the same time. */
  readonly isDoubled: boolean
  readonly watch: 'follow' | 'wait'
  /** Entry n is the number of frames after which the follower closes its connection n. */
  readonly hangUps: readonly number[]
  readonly expect: Expectation
}

/** Models of the jobs. `echo-1` runs in the worker. `witness-1` is served by the test process, which records each execution. */
const MODELS = ['echo-1', 'witness-1'] as const

/** Plans the job with a number. Equal seeds and numbers give equal jobs. */
export function planJob(seed: number, number: number): PlannedJob {
  const random = randomOf(seed, number)
  const key = `chaos-${seed}-${number}`
  const stream = random.chance(0.6)
  const words = random.between(1, 30)
  const text = [key, ...Array.from({ length: words }, () => `word${random.between(0, 999)}`)].join(' ')
  const cancelAfterMs = random.chance(0.06) ? random.between(0, 4_000) : undefined
  const model = random.pick(MODELS)
  const content = `!echo ${paceOf(random)}${random.chance(0.04) ? ' fail=overloaded failures=1' : ''}\n${text}`
  return {
    key,
    call: { endpoint: '/v1/chat/completions', body: { model, messages: [{ role: 'user', content }], stream } },
    metadata: { key },
    priority: random.chance(0.15) ? 'low' : 'normal',
    ...(random.chance(0.05) && { runInMs: random.between(1_000, 10_000) }),
    ...(cancelAfterMs !== undefined && { cancelAfterMs }),
    isDoubled: random.chance(0.05),
    watch: random.chance(0.85) ? 'follow' : 'wait',
    hangUps: random.chance(0.3) ? [random.between(1, 5), random.between(1, 10)] : [],
    expect: { stream, text, is_cancelled: cancelAfterMs !== undefined },
  }
}

/** Random numbers for one job. The seed includes the job's number, so that a change of one job's plan does not change the other jobs. */
export function randomOf(seed: number, number: number): Random {
  return openRandom(Math.imul(seed, 0x9e3779b1) ^ Math.imul(number + 1, 0x85ebca6b))
}

/** Returns the directives for the delays of a job. Most jobs are quick. Some take seconds, so that faults happen while they run. */
function paceOf(random: Random): string {
  const speed = random.next()
  if (speed < 0.6) return `first_ms=${random.between(0, 50)} delay_ms=${random.between(0, 5)}`
  if (speed < 0.9) return `first_ms=${random.between(100, 1_000)} delay_ms=${random.between(5, 60)}`
  return `first_ms=${random.between(500, 3_000)} delay_ms=${random.between(100, 300)}`
}

/** Scheduled start of a job in whole unix seconds; undefined if the job starts at once. */
export function runAtOf({ runInMs }: PlannedJob, nowMs: number): number | undefined {
  return runInMs === undefined ? undefined : Math.floor((nowMs + runInMs) / 1_000)
}

/**
 * Body of `POST /v1/jobs`.
 *
 * @param runAt Unix seconds
 */
export function bodyOf(job: PlannedJob, runAt: number | undefined): Record<string, unknown> {
  return {
    ...job.call,
    metadata: job.metadata,
    priority: job.priority,
    expires_after_seconds: 3_600,
    ...(runAt !== undefined && { run_at: runAt }),
  }
}
