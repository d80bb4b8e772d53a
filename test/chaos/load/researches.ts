import { questionOf } from '../../support/research/outside.ts'
import { reportOf } from '../check/report.ts'
import { type Clients, runQuietly } from './client.ts'
import { type PlannedJob, randomOf } from './workload.ts'

/** Id of the research model. All servers that the model calls are part of the test and not hit by faults. */
export const RESEARCH_MODEL = 'research-1'
/**
 * Lowest numbers in the tags of quick and of slow researches. A tag is a unique word in the question of a research, such as `Tarn10001`. All
 * numbers have five digits, so that the offsets in all reports are equal.
 */
const TAG_BASE = { quick: 10_000, slow: 20_000 }
/** Timeout of the research that runs before the load, without faults. */
const QUIET_MS = 180_000

/** Outcome of a research that ran without faults. Later researches must have the same outcome, except for the tag. */
export interface QuietResearch {
  readonly tag: string
  readonly text: string
  /** Hash of the report with its citations. */
  readonly report: string
  readonly children: number
  /** Kinds of its steps, sorted. */
  readonly steps: readonly string[]
}

/** Whether the chat model of the test takes 45 s for each answer to a research with this tag. */
export function isSlowTag(tag: string): boolean {
  return Number(tag.slice('Tarn'.length)) >= TAG_BASE.slow
}

/**
 * Runs one research without faults, to get the outcome that later researches are compared with.
 *
 * @throws Error if the research does not complete
 */
export async function researchQuietly(clients: Clients): Promise<QuietResearch> {
  const tag = tagOf(TAG_BASE.quick)
  const signal = AbortSignal.any([clients.signal, AbortSignal.timeout(QUIET_MS)])
  const job = await runQuietly({ ...clients, signal }, callOf(tag, true))
  const report = reportOf(job?.result ?? null, tag)
  if (job?.status !== 'completed' || !report) throw new Error(`the research before the load is ${JSON.stringify(job)}`)
  const steps = (job.steps ?? []).map(({ kind }) => kind).toSorted()
  return { tag, ...report, children: job.children?.length ?? 0, steps }
}

/**
 * Plans the research with a number, from 1. Equal seeds give equal plans. The expected outcome is that of the research without faults, with the
 * tag replaced.
 */
export function planResearch(seed: number, number: number, quiet: QuietResearch): PlannedJob {
  const random = randomOf(seed, -1 - number)
  const stream = random.chance(0.6)
  const cancelAfterMs = random.chance(0.12) ? random.between(0, 8_000) : undefined
  // Some of the researches that will be cancelled get slow child jobs. A child that the cancel fails to stop would then be detected.
  const isSlow = cancelAfterMs !== undefined && random.chance(0.6)
  const tag = tagOf((isSlow ? TAG_BASE.slow : TAG_BASE.quick) + number)
  const { report, children, steps } = quiet
  const key = `chaos-${seed}-research-${number}`
  return {
    key,
    call: callOf(tag, stream),
    metadata: { key, tag },
    priority: random.chance(0.15) ? 'low' : 'normal',
    ...(cancelAfterMs !== undefined && { cancelAfterMs }),
    isDoubled: random.chance(0.1),
    watch: random.chance(0.85) ? 'follow' : 'wait',
    hangUps: random.chance(0.3) ? [random.between(1, 5), random.between(1, 10)] : [],
    expect: {
      stream,
      text: quiet.text.replaceAll(quiet.tag, tag),
      is_cancelled: cancelAfterMs !== undefined,
      research: { tag, report, children, steps },
    },
  }
}

function callOf(tag: string, stream: boolean): PlannedJob['call'] {
  const messages = [{ role: 'user', content: questionOf(tag) }]
  // One search and one page keep the research short. With the effort `high`, the time limit is longer than any outage, so the research skips neither.
  const body = { model: RESEARCH_MODEL, messages, stream, reasoning_effort: 'high', max_tool_calls: 1, max_sources: 1 }
  return { endpoint: '/v1/deep-research', body }
}

function tagOf(number: number): string {
  return `Tarn${number}`
}
