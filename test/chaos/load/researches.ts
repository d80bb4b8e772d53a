import { questionOf } from '../../support/research/outside.ts'
import { reportOf } from '../check/report.ts'
import { type Clients, runQuietly } from './client.ts'
import { type PlannedJob, randomOf } from './workload.ts'

/** The research model, which calls the scripted servers outside the fleet. */
export const RESEARCH_MODEL = 'research-1'
/** First tag numbers. All tags have the same length, so that the offsets in reports are equal. */
const TAG_BASE = { quick: 10_000, slow: 20_000 }
/** Timeout of the research before the load. */
const QUIET_MS = 180_000

/** Outcome of an undisturbed research, for the tag of its question. */
export interface QuietResearch {
  readonly tag: string
  readonly text: string
  /** Hash of the report with its citations. */
  readonly report: string
  readonly children: number
  /** Kinds of its steps, sorted. */
  readonly steps: readonly string[]
}

/** Whether the model answers questions of a tag slowly. */
export function isSlowTag(tag: string): boolean {
  return Number(tag.slice('Tarn'.length)) >= TAG_BASE.slow
}

/** Runs one research before the faults start. @throws if it does not complete */
export async function researchQuietly(clients: Clients): Promise<QuietResearch> {
  const tag = tagOf(TAG_BASE.quick)
  const signal = AbortSignal.any([clients.signal, AbortSignal.timeout(QUIET_MS)])
  const job = await runQuietly({ ...clients, signal }, callOf(tag, true))
  const report = reportOf(job?.result ?? null, tag)
  if (job?.status !== 'completed' || !report) throw new Error(`the research before the load is ${JSON.stringify(job)}`)
  const steps = (job.steps ?? []).map(({ kind }) => kind).toSorted()
  return { tag, ...report, children: job.children?.length ?? 0, steps }
}

/** The research of a number, from 1; equal for equal seeds. The expected outcome is the outcome of the undisturbed research with its own tag. */
export function planResearch(seed: number, number: number, quiet: QuietResearch): PlannedJob {
  const random = randomOf(seed, -1 - number)
  const stream = random.chance(0.6)
  const cancelAfterMs = random.chance(0.12) ? random.between(0, 8_000) : undefined
  // Some of the cancelled researches get slow children, which would run for a long time if the cancel did not stop them.
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
  // With one search and one page, the research is short. With the effort `high`, its time limit is so long that no outage makes the research skip
  // them.
  const body = { model: RESEARCH_MODEL, messages, stream, reasoning_effort: 'high', max_tool_calls: 1, max_sources: 1 }
  return { endpoint: '/v1/deep-research', body }
}

function tagOf(number: number): string {
  return `Tarn${number}`
}
