import { createHash } from 'node:crypto'
import { exitOf, type JobView, type StepView } from '#services/cli/client/job.ts'
import type { Command, Invocation } from '#services/cli/command.ts'
import { CommandError, EXIT, type ExitCode, usageError } from '#services/cli/failure.ts'
import { type Comparison, compareRuns, type Divergence } from '#services/cli/replay/compare.ts'
import { plain } from '#services/cli/text/output.ts'

/** Steps of one run that are held in memory: as many as a job may have. */
const STEPS_MAX = 1_000
/** A replay waits for nothing but the service. */
const WAIT_SECONDS = 300

/** `sluice replay` */
export const replay: Command = {
  summary: 'Run a composed job again from its record, and show where two runs part',
  help: `Usage: sluice replay JOB [OTHER]

Runs a composed job, such as a research, again from its record: a new job whose steps and children are answered by those of JOB, with
nothing asked for outside, by the service and the settings as they are today. Where that asks for what was not recorded it fails, and
says what, and what was recorded that is most like it. A run in which a search or a page failed cannot be replayed, for what failed is
not recorded. Compares the two then. With OTHER it compares JOB with that one, and runs nothing.

Compares two runs of composed jobs, such as two researches of one question, by what they asked for outside and what they got: each step
of the first is the same in the other, got another output, or is missing there. Says where they part first, with the step of the
other run that is most like it and what differs, and whether both reports are the same. The time at which a run began does not count.

Exits 0 where the runs are the same, 1 where they part.

Examples:
  sluice replay job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F
  sluice replay job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F job_01J9ZR0V4P1B8N7C6D5E4F3G2H
  sluice replay job_01J9ZQ6M8T5T9Q2W8Y5XKQ3F job_01J9ZR0V4P1B8N7C6D5E4F3G2H --json | jq 'select(.is != "same")'`,
  options: {},
  async run(invocation): Promise<ExitCode> {
    const { args, api } = invocation
    const [first, second, more] = args
    if (first === undefined) throw usageError('JOB is missing.')
    if (more !== undefined) throw usageError(`Two jobs at a time; ${more} is one too many.`)
    const job = await api.get(first)
    const other = second === undefined ? await replayed(invocation, first) : await api.get(second)
    const comparison = compareRuns(await stepsOf(invocation, first), await stepsOf(invocation, other.id))
    const isSameReport = reportHash(job) === reportHash(other)
    await print(invocation, comparison, isSameReport)
    return comparison.divergence === undefined && isSameReport ? EXIT.ok : EXIT.failed
  },
}

/** Replays a job to its end. What it says where it parts from its record is told. */
async function replayed({ api, out }: Invocation, id: string): Promise<JobView> {
  const { id: replay } = await api.replay(id)
  const job = await api.get(replay, WAIT_SECONDS)
  if (exitOf(job) === undefined) {
    const next = `Compare them when it has ended: sluice replay ${plain(id)} ${plain(replay)}`
    throw new CommandError(EXIT.failed, `${plain(replay)} has not ended yet.`, next)
  }
  if (job.error) out.note(plain(job.error.message))
  return job
}

async function stepsOf({ api }: Invocation, id: string): Promise<StepView[]> {
  const steps: StepView[] = []
  for await (const step of api.steps(id)) if (steps.push(step) === STEPS_MAX) break
  return steps
}

/** What a run has come to, without what names it: the message of a completion, else all of its result. */
function reportHash({ status, result }: JobView): string {
  const completion = result as { choices?: { message?: unknown }[] } | null | undefined
  const said = completion?.choices?.map(({ message }) => message) ?? result ?? null
  return createHash('sha256')
    .update(JSON.stringify([status, said]))
    .digest('hex')
}

async function print({ out }: Invocation, comparison: Comparison, isSameReport: boolean): Promise<void> {
  for (const line of linesOf(comparison)) {
    if (!out.isForPeople) await out.json(line)
    else await out.write(`${String(line.number).padStart(4)} ${plain(line.kind).padEnd(8)} ${line.is}\n`)
  }
  const { divergence } = comparison
  if (!out.isForPeople)
    return await out.json({ parts_at: divergence ? partOf(divergence) : null, same_report: isSameReport })
  for (const line of divergence ? wordsOf(divergence) : []) out.note(line)
  out.note(isSameReport ? 'The reports are the same.' : 'The reports differ.')
}

function linesOf({ steps, more }: Comparison) {
  const own = steps.map(({ step: { number, kind }, is }) => ({ number, kind, is: is as string }))
  return [...own, ...more.map(({ number, kind }) => ({ number, kind, is: 'only in the other' }))]
}

function partOf({ step: { number, kind }, nearest, differences }: Divergence): object {
  return { number, kind, nearest: nearest?.number ?? null, differences }
}

function wordsOf({ step: { number, kind }, nearest, differences }: Divergence): string[] {
  const likest = nearest ? `The other's step ${nearest.number} is most like it:` : 'The other run has nothing like it.'
  return [`They part at step ${number}, ${plain(kind)}.`, likest, ...differences.map((line) => `  ${plain(line)}`)]
}
