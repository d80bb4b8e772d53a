import type { Random } from '../chaos/load/random.ts'
import type { Plan } from '../support/jobs/compose-kind.ts'
import type { Script } from './work.ts'

/** Tenants: TENANT submits nearly all jobs, and BURST_TENANT submits bursts of jobs. */
const TENANT = 'key_1'
const BURST_TENANT = 'key_0'

/** A job as a client submits it. */
export interface JobRequest {
  readonly tenant: string
  readonly script: Script
  readonly isStream: boolean
  readonly deadlineInMs: number
  readonly startInMs: number | undefined
  readonly runInMs: number | undefined
  readonly isLow: boolean
  readonly hasKey: boolean
  /** If set, then the job is composed of these steps and children. The job's own script is not used; each child has a script. */
  readonly plan?: Plan
}

/** Probability of a composed job, and its deadline. The deadline is long enough for all steps and children, unless a child never ends. */
const COMPOSED = 0.15
const COMPOSED_MS = 110_000

/**
 * Returns a random job. Some jobs fail.
 *
 * @param ref Text that identifies the job in the simulation
 */
export function randomRequest(ref: string, random: Random): JobRequest {
  const request = plainRequest(ref, random)
  if (!random.chance(COMPOSED)) return request
  const script = { ...request.script, isPoison: false, isEndless: false, failures: 0 }
  const children = Array.from({ length: random.between(0, 3) }, (_, nth) => childScript(`${ref}.${nth}`, random))
  const childDeadlineInMs = random.chance(0.7) ? random.between(8_000, 30_000) : undefined
  const plan = { steps: random.between(1, 3), children, ...(childDeadlineInMs !== undefined && { childDeadlineInMs }) }
  return { ...request, script, plan, deadlineInMs: COMPOSED_MS, startInMs: undefined }
}

/** Returns one job of a burst, in which one tenant submits many jobs at once. */
export function burstRequest(ref: string, random: Random): JobRequest {
  const request = plainRequest(ref, random)
  const script = {
    ...request.script,
    tokens: 2,
    tokenMs: 400,
    failures: 0,
    isPoison: false,
    isEndless: false,
    padding: 0,
  }
  return {
    ...request,
    tenant: BURST_TENANT,
    script,
    deadlineInMs: 120_000,
    startInMs: undefined,
    runInMs: undefined,
    isLow: false,
  }
}

function childScript(ref: string, random: Random): Script {
  return {
    ref,
    tokens: random.between(1, 4),
    tokenMs: random.pick([0, 60, 400, 1_500]),
    failures: random.chance(0.2) ? 1 : 0,
    isRetryable: random.chance(0.8),
    isPoison: random.chance(0.04),
    isEndless: random.chance(0.08),
    padding: 0,
  }
}

function plainRequest(ref: string, random: Random): JobRequest {
  const isPoison = random.chance(0.06)
  const failures = random.chance(0.25) ? random.between(1, 4) : 0
  const isEndless = random.chance(0.05)
  return {
    tenant: TENANT,
    script: {
      ref,
      tokens: random.between(isPoison || failures > 0 ? 2 : 0, 10),
      tokenMs: isEndless ? 200 : random.pick([0, 60, 400, 1_500, 1_500]),
      failures,
      isRetryable: random.chance(0.85),
      isPoison,
      isEndless,
      padding: isEndless && random.chance(0.3) ? 30_000 : 0,
    },
    isStream: random.chance(0.6),
    deadlineInMs: !isEndless && random.chance(0.5) ? 120_000 : random.between(8_000, 40_000),
    startInMs: random.chance(0.15) ? random.between(200, 6_000) : undefined,
    runInMs: random.chance(0.15) ? random.between(0, 8_000) : undefined,
    isLow: random.chance(0.25),
    hasKey: random.chance(0.7),
  }
}
