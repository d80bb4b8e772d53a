import { createHash } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import { exitCodeOf, type JobView, type StepView } from '#services/cli/client/job.ts'
import { CommandError, EXIT, type ExitCode, plain, usageError } from '#services/cli/text/output.ts'
import { differencesOf } from '#shared/json/differences.ts'
import type { Command, Invocation } from './command.ts'

/** Maximum steps of a run that are read into memory. A job has at most this many steps. */
const STEPS_MAX = 1_000
/** Maximum wait for the replay, in seconds. A replay makes no external calls, so it finishes quickly. */
const WAIT_SECONDS = 300

export const replay: Command = {
  summary: 'Replay a composed job, or compare two runs',
  help: `Usage: sluice replay JOB [OTHER]

Replays a composed job, such as a research job, with the current service and settings, and compares the two runs. The new job
makes no external calls: the recorded steps and child jobs of JOB provide all results. If the new job needs a step that was not recorded,
then it fails. The error names the missing step and the most similar recorded step. A run with a failed search or page cannot be
replayed, because failures are not recorded. With OTHER, compares JOB with OTHER without running anything.

The comparison is by steps: each step of the first run is "same", has an "other output", or is "missing" in the second. The report
shows the first difference, the most similar step of the other run, and whether both final reports are equal. Start times are
ignored.

The exit code is 0 for equal runs and 1 for different ones.

Examples:
  sluice replay job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F
  sluice replay job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F job_01J9ZR0V4P1B8N7C6D5E4F3G2H
  sluice replay job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F job_01J9ZR0V4P1B8N7C6D5E4F3G2H --json | jq 'select(.is != "same")'`,
  options: {},
  async run(invocation): Promise<ExitCode> {
    const { args, api } = invocation
    const [first, second, extra] = args
    if (first === undefined) throw usageError('Missing argument: JOB.')
    if (extra !== undefined) throw usageError(`Too many arguments: expected at most two jobs, also got '${extra}'.`)
    const job = await api.get(first)
    const other = second === undefined ? await replayed(invocation, first) : await api.get(second)
    const comparison = compareRuns(await stepsOf(invocation, first), await stepsOf(invocation, other.id))
    const isSameReport = reportHash(job) === reportHash(other)
    await print(invocation, comparison, isSameReport)
    return comparison.divergence === undefined && isSameReport ? EXIT.ok : EXIT.failed
  },
}

/**
 * Replays a job and waits until the replay has finished. Prints the error if the replay failed, for example because it requested a step that the
 * first run had not recorded.
 */
async function replayed({ api, out }: Invocation, id: string): Promise<JobView> {
  const { id: replay } = await api.replay(id)
  const job = await api.get(replay, WAIT_SECONDS)
  if (exitCodeOf(job) === undefined) {
    const next = `To compare the runs later: sluice replay ${plain(id)} ${plain(replay)}`
    throw new CommandError(EXIT.failed, `The replay ${plain(replay)} has not finished within ${WAIT_SECONDS} s.`, next)
  }
  if (job.error) out.note(plain(job.error.message))
  return job
}

async function stepsOf({ api }: Invocation, id: string): Promise<StepView[]> {
  const steps: StepView[] = []
  for await (const step of api.steps(id)) if (steps.push(step) === STEPS_MAX) break
  return steps
}

/**
 * Returns a hash of a run's status and report, to compare two runs. The report of a completion consists of its messages, without ids. The report of
 * any other result is the whole result.
 */
function reportHash({ status, result }: JobView): string {
  const completion = result as { choices?: { message?: unknown }[] } | null | undefined
  const report = completion?.choices?.map(({ message }) => message) ?? result ?? null
  return createHash('sha256')
    .update(JSON.stringify([status, report]))
    .digest('hex')
}

async function print({ out }: Invocation, comparison: Comparison, isSameReport: boolean): Promise<void> {
  for (const line of linesOf(comparison)) {
    if (!out.isHumanReadable) await out.json(line)
    else await out.write(`${String(line.number).padStart(4)} ${plain(line.kind).padEnd(8)} ${line.is}\n`)
  }
  const { divergence } = comparison
  if (!out.isHumanReadable)
    return await out.json({ parts_at: divergence ? divergenceJson(divergence) : null, same_report: isSameReport })
  for (const line of divergence ? divergenceLines(divergence) : []) out.note(line)
  out.note(isSameReport ? 'The reports are equal.' : 'The reports differ.')
}

function linesOf({ steps, more }: Comparison) {
  const own = steps.map(({ step: { number, kind }, is }) => ({ number, kind, is: is as string }))
  return [...own, ...more.map(({ number, kind }) => ({ number, kind, is: 'only in the other' }))]
}

function divergenceJson({ step: { number, kind }, nearest, differences }: Divergence): object {
  return { number, kind, nearest: nearest?.number ?? null, differences }
}

function divergenceLines({ step: { number, kind }, nearest, differences }: Divergence): string[] {
  const similar = nearest
    ? `Most similar step of the other run: ${nearest.number}. Differences:`
    : 'The other run has no similar step.'
  return [
    `First difference at step ${number} (${plain(kind)}).`,
    similar,
    ...differences.map((line) => `  ${plain(line)}`),
  ]
}

/**
 * Kinds of steps whose output is a timestamp. Such outputs differ in every run, so they are not compared. If a timestamp changed the course
 * of a run, then later steps differ, and the comparison reports these steps.
 */
const TIMESTAMP_KINDS: ReadonlySet<string> = new Set(['admit'])

/**
 * A step of the first run compared with the second run. `missing` means that the second run has no step with that
 * input.
 */
interface ComparedStep {
  readonly step: StepView
  readonly is: 'same' | 'other output' | 'missing'
}

interface Divergence {
  readonly step: StepView
  /** The most similar step of the same kind in the other run. */
  readonly nearest: StepView | undefined
  readonly differences: readonly string[]
}

interface Comparison {
  readonly steps: readonly ComparedStep[]
  /** Steps of the second run that have no matching step in the first run. */
  readonly more: readonly StepView[]
  readonly divergence: Divergence | undefined
}

/**
 * Compares the steps of two runs, regardless of their order. Two steps match if their keys are equal. A key is derived from the kind and
 * the input of a step.
 */
export function compareRuns(first: readonly StepView[], second: readonly StepView[]): Comparison {
  const byKey = new Map(second.map((step) => [step.key, step]))
  const keys = new Set(first.map(({ key }) => key))
  const more = second.filter(({ key }) => !keys.has(key))
  const steps = first.map((step): ComparedStep => ({ step, is: stateOf(step, byKey.get(step.key)) }))
  const different = steps.find(({ is }) => is !== 'same')
  const [extra] = more
  if (!different) return { steps, more, divergence: extra && divergenceAt(extra, undefined) }
  const { step, is } = different
  return {
    steps,
    more,
    divergence: divergenceAt(step, is === 'missing' ? similarStepOf(step, more) : byKey.get(step.key)),
  }
}

function stateOf(step: StepView, other: StepView | undefined): ComparedStep['is'] {
  if (!other) return 'missing'
  return TIMESTAMP_KINDS.has(step.kind) || isDeepStrictEqual(step.output, other.output) ? 'same' : 'other output'
}

function divergenceAt(step: StepView, nearest: StepView | undefined): Divergence {
  const isSameStep = nearest?.key === step.key
  const [a, b] = isSameStep ? [step.output, nearest?.output] : [step.input, nearest?.input]
  return { step, nearest, differences: nearest ? differencesOf(a, b) : [] }
}

function similarStepOf(step: StepView, others: readonly StepView[]): StepView | undefined {
  let nearest: { step: StepView; count: number } | undefined
  for (const other of others) {
    if (other.kind !== step.kind) continue
    const count = differencesOf(step.input, other.input).length
    if (!nearest || count < nearest.count) nearest = { step: other, count }
  }
  return nearest?.step
}
