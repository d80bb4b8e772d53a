import { acceptedOf, type Verdict } from './check/check.ts'
import { wasPaused } from './check/family.ts'
import type { JobHistory, Of, Recorded } from './check/history.ts'
import { of } from './check/job.ts'

/** Exit code of a process that could not start: invalid settings, or Kafka or Postgres was down for too long. */
const NOT_STARTED = '2'

/** Figures of a run by their description, as printed in docs/operate/reliability.md. */
export type Figures = Readonly<Record<string, string | number>>

/** Computes the figures of a run. The only input is the recorded history, not the service. */
export function figuresOf(verdict: Verdict, records: readonly Recorded[]): Figures {
  const accepted = acceptedOf(verdict)
  const faults = records.filter((entry) => entry.type === 'fault')
  const begun = faults.filter(({ phase }) => phase === 'begin')
  const exits = records.filter((entry) => entry.type === 'exit')
  const events = verdict.jobs.flatMap((job) => job.events)
  const retries = events.filter(({ event }) => event === 'job.retrying')
  const state = (name: string) => accepted.filter(({ row }) => row?.state === name).length
  const rule = (start: string) => verdict.violations.filter((violation) => violation.rule.startsWith(start)).length
  return {
    seed: verdict.seed,
    minutes: round((records.at(-1)?.at_ms ?? 0) / 60_000),
    'accepted jobs': accepted.length,
    completed: state('completed'),
    cancelled: state('cancelled'),
    'given up after three lost workers': state('failed'),
    ...researchesOf(verdict, records),
    ...killsOf(begun),
    'processes stopped for 5 to 15 s': begun.filter(({ kind }) => kind === 'freeze').length,
    'processes ended by SIGTERM': begun.filter(({ kind }) => kind === 'roll').length,
    'topics deleted': begun.filter(({ kind }) => kind === 'delete').length,
    'faults that could not be done': faults.filter(({ phase }) => phase === 'problem').length,
    'processes that ended by themselves': exits.filter(({ code }) => code !== NOT_STARTED).length,
    'starts given up': exits.filter(({ code }) => code === NOT_STARTED).length,
    'submissions of unknown outcome': records.filter(isUnknownSubmit).length,
    'events followed': records.filter(({ type }) => type === 'frame').length,
    'streams resumed in the middle': records.filter(
      (entry) => entry.type === 'follow' && entry.phase === 'connected' && entry.after > 0,
    ).length,
    'executions that followed a retry': verdict.jobs.reduce((sum, job) => sum + repeatsOf(job), 0),
    'of these after a lost worker': countReason(retries, (reason) => reason === 'worker_lost'),
    'of these handed back by a worker that drains': countReason(retries, (reason) => reason === 'handed_back'),
    'of these after a failure': countReason(retries, (r) => r !== 'worker_lost' && r !== 'handed_back'),
    'executions the witness saw': records.filter((entry) => entry.type === 'run' && entry.phase === 'start').length,
    ...timesOf(accepted),
    'lost jobs': rule('I1 '),
    'doubled children': rule('I13 children'),
    'children that outlived their parent': rule('I13 outlived'),
    'repeated steps': rule('I12 '),
    'jobs with two ends': rule('I2 '),
    'gaps or repeats': rule('I4 ') + rule('I6 '),
    'wrong output': rule('I5 '),
    'unseen executions': rule('I7 '),
    violations: verdict.violations.length,
  }
}

/**
 * Returns the number of attempts that repeated an earlier one. A start after `job.waiting` continues the previous attempt, so it does not count.
 */
function repeatsOf({ events }: JobHistory): number {
  const moves = events.filter(({ event }) => ['job.started', 'job.waiting', 'job.retrying'].includes(event))
  return moves.filter(({ event }, i) => event === 'job.started' && moves[i - 1]?.event === 'job.retrying').length
}

/** Formats figures as a Markdown table with two columns. */
export function tableOf(figures: Figures): string {
  const width = Math.max(...Object.keys(figures).map((name) => name.length))
  const rows = Object.entries(figures).map(
    ([name, value]) => `| ${name.padEnd(width)} | ${String(value).padStart(10)} |`,
  )
  return [
    `| ${'figure'.padEnd(width)} | ${'value'.padStart(10)} |`,
    `| ${'-'.repeat(width)} | ---------: |`,
    ...rows,
  ].join('\n')
}

/** Figures of the composed jobs (researches) and of their child jobs. */
function researchesOf(verdict: Verdict, records: readonly Recorded[]): Figures {
  const researches = acceptedOf(verdict).filter(({ expect }) => expect?.research)
  const children = researches.flatMap((job) => job.children)
  const count = (jobs: readonly JobHistory[], is: (event: Of<'event'>) => boolean) =>
    jobs.reduce((sum, { events }) => sum + events.filter(is).length, 0)
  const isLoss = ({ event, reason }: Of<'event'>) => event === 'job.retrying' && reason === 'worker_lost'
  const asked = records.filter((entry) => entry.type === 'outside')
  return {
    'researches among them': researches.length,
    '- cancelled': researches.filter(({ row }) => row?.state === 'cancelled').length,
    '- children of them': children.length,
    '- children cancelled with their parent': children.filter(({ row }) => row?.state === 'cancelled').length,
    '- steps kept': researches.reduce((sum, { row }) => sum + (row?.family?.kept_steps.length ?? 0), 0),
    '- times parked': count(researches, ({ event }) => event === 'job.waiting'),
    '- workers lost under a research': count(researches, isLoss),
    '- workers lost under a child': count(children, isLoss),
    '- held up for long in an attempt': researches.filter(wasPaused).length,
    '- searches and pages asked for outside': asked.length,
    '- of these again': asked.length - new Set(asked.map(({ tag, what }) => `${tag} ${what}`)).size,
    '- of these without an answer in time': asked.filter(({ phase }) => phase === 'aborted').length,
  }
}

/**
 * Returns the number of kills by kind of process.
 *
 * @param begun The first entry of each fault
 */
function killsOf(begun: readonly Of<'fault'>[]): Record<string, number> {
  const kills = begun.filter(({ kind }) => kind === 'kill')
  const sorts = ['ingress', 'inference', 'research', 'scheduler', 'broker', 'database']
  const counts = sorts.map((sort) => [`- ${sort}`, kills.filter(({ target }) => target.startsWith(sort)).length])
  return { 'processes killed with -9': kills.length, ...Object.fromEntries(counts) }
}

function isUnknownSubmit(entry: Recorded): boolean {
  return entry.type === 'submit' && entry.phase === 'unknown'
}

function countReason(retries: readonly Of<'event'>[], is: (reason: string) => boolean): number {
  return retries.filter(({ reason = '' }) => is(reason)).length
}

function timesOf(accepted: readonly JobHistory[]): Record<string, string> {
  const atOnce = accepted.filter(({ expect }) => expect?.run_at_wall_ms === undefined)
  const waitsOf = (jobs: readonly JobHistory[]) =>
    jobs.flatMap(({ row }) => (row?.finished_at_wall_ms ? [row.finished_at_wall_ms - row.created_at_wall_ms] : []))
  return {
    'seconds from submission to end, p50 / p99': quantiles(waitsOf(atOnce.filter(({ expect }) => !expect?.research))),
    'the same of a research, p50 / p99': quantiles(waitsOf(atOnce.filter(({ expect }) => expect?.research))),
    'seconds from a lost execution to the next one, p50 / p99': quantiles(accepted.flatMap(restarts)),
    'seconds from a cut stream to its resumption, p50 / p99': quantiles(accepted.flatMap(resumes)),
  }
}

/** For each execution that ended because its worker was lost: returns the time until the next execution of the job started. */
function restarts(job: JobHistory): number[] {
  const runs = of(job, 'run')
  return runs.flatMap(({ phase, attempt, at_ms }) => {
    const isLost = job.events.some((event) => event.attempt === attempt && event.reason === 'worker_lost')
    const next = runs.find((run) => run.phase === 'start' && run.attempt > attempt)
    return phase === 'aborted' && isLost && next ? [next.at_ms - at_ms] : []
  })
}

/** For each event stream that a client lost: returns the time until an ingress answered the next connection with status 200. */
function resumes(job: JobHistory): number[] {
  const times: number[] = []
  let cutAt: number | undefined
  let isHeld = false
  for (const { phase, at_ms } of of(job, 'follow')) {
    if (phase === 'cut' && isHeld) cutAt ??= at_ms
    if (phase === 'connected' && cutAt !== undefined) times.push(at_ms - cutAt)
    if (phase === 'connected') cutAt = undefined
    isHeld = phase === 'connected' || (phase === 'open' && isHeld)
  }
  return times
}

function quantiles(values: readonly number[]): string {
  if (values.length === 0) return '–'
  const sorted = values.toSorted((a, b) => a - b)
  const at = (share: number) =>
    round((sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0) / 1_000)
  return `${at(0.5)} / ${at(0.99)}`
}

function round(value: number): number {
  return Math.round(value * 100) / 100
}
