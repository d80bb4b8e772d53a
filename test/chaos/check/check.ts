import type { Expectation, JobHistory, Of, Recorded } from './history.ts'
import { checkJob, isAccepted, type Violation } from './job.ts'

export interface Verdict {
  readonly seed: number
  readonly jobs: readonly JobHistory[]
  readonly violations: readonly Violation[]
}

/**
 * Maximum time from a fault until the store records the loss of a worker. The time covers the lease of the worker, the interval at
 * which the scheduler looks for expired leases, and a restart of a process.
 */
const FAULT_ECHO_MS = 60_000

/** Checks the history of a run: the rules for each job, one job per idempotency key, and a preceding fault for each lost worker. */
export function checkHistory(records: readonly Recorded[]): Verdict {
  const begin = records.find((entry) => entry.type === 'begin') as Of<'begin'> | undefined
  const jobs = withFamilies(groupByJob(records))
  const violations = [
    ...jobs.flatMap(checkJob),
    ...checkKeys(records, jobs),
    ...checkLosses(records, jobs, begin?.wall_ms ?? 0),
  ]
  return { seed: begin?.seed ?? 0, jobs, violations }
}

export function acceptedOf(verdict: Verdict): JobHistory[] {
  return verdict.jobs.filter(isAccepted)
}

/** Formats the history of one job that broke a rule: the one with the fewest entries, for a short report. Empty if no rule was broken. */
export function describeSmallest(verdict: Verdict): string {
  const broken = new Set(verdict.violations.map(({ job_id }) => job_id))
  const smallest = verdict.jobs
    .filter(({ id }) => broken.has(id))
    .toSorted((a, b) => a.entries.length + a.events.length - b.entries.length - b.events.length)[0]
  const problems = verdict.violations
    .filter(({ job_id }) => !smallest || job_id === smallest.id)
    .map(({ rule, problem }) => `  ${rule}: ${problem}`)
  if (problems.length === 0) return ''
  const head = `${verdict.violations.length} violations in ${broken.size} jobs; seed ${verdict.seed}; the smallest is`
  return [`${head} ${smallest?.id}:`, ...problems, '', ...(smallest ? timelineOf(smallest) : [])].join('\n')
}

function timelineOf(job: JobHistory): string[] {
  const entries = [job, ...job.children].flatMap(({ entries }) => entries).toSorted((a, b) => a.at_ms - b.at_ms)
  return entries.map(({ at_ms, actor, type, ...rest }) => {
    const fields = Object.entries(rest).filter(([name, value]) => name !== 'follower' && value !== job.id)
    const text = fields.map(([name, value]) => `${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`)
    return `  ${(at_ms / 1_000).toFixed(3).padStart(9)} ${actor.padEnd(11)} ${type} ${text.join(' ')}`
  })
}

/** Groups all entries by their job, in one pass. A submission without a job id is assigned to the job that its idempotency key created. */
function groupByJob(records: readonly Recorded[]): JobHistory[] {
  const jobOfKey = new Map<string, string>()
  const keyOfTag = new Map<string, string>()
  for (const entry of records) {
    if (entry.type === 'submit' && entry.expect?.research) keyOfTag.set(entry.expect.research.tag, entry.key)
    if (entry.type === 'row') jobOfKey.set(entry.key, entry.job_id)
    if (entry.type === 'submit' && entry.job_id && !jobOfKey.has(entry.key)) jobOfKey.set(entry.key, entry.job_id)
  }
  const groups = new Map<string, Recorded[]>()
  for (const entry of records) {
    const id = entry.type === 'outside' ? jobOfKey.get(keyOfTag.get(entry.tag) ?? '') : jobIdOf(entry, jobOfKey)
    if (id === undefined) continue
    const group = groups.get(id)
    if (group) group.push(entry)
    else groups.set(id, [entry])
  }
  return [...groups].map(([id, entries]) => historyOf(id, entries))
}

function jobIdOf(entry: Exclude<Recorded, Of<'outside'>>, jobOfKey: ReadonlyMap<string, string>): string | undefined {
  if (entry.type === 'begin' || entry.type === 'fault' || entry.type === 'exit') return undefined
  return entry.type === 'submit' ? (entry.job_id ?? jobOfKey.get(entry.key)) : entry.job_id
}

function historyOf(id: string, entries: readonly Recorded[]): JobHistory {
  const submits = entries.filter((entry) => entry.type === 'submit')
  const row = entries.find((entry) => entry.type === 'row')
  const events = entries.filter((entry) => entry.type === 'event').toSorted((a, b) => a.seq - b.seq)
  const expect: Expectation | undefined = submits.find((entry) => entry.expect)?.expect
  const key = row?.key ?? submits[0]?.key
  return { id, key, expect, entries, row, events, children: [], parent: undefined }
}

/** Adds to each job its parent and its children. Only one level is added: the added jobs have neither a parent nor children themselves. */
function withFamilies(jobs: readonly JobHistory[]): JobHistory[] {
  const byId = new Map(jobs.map((job) => [job.id, job]))
  const parentOf = ({ row }: JobHistory) => row?.family?.parent_id ?? undefined
  const children = Map.groupBy(jobs.filter(parentOf), parentOf)
  return jobs.map((job) => ({
    ...job,
    children: children.get(job.id) ?? [],
    parent: byId.get(parentOf(job) ?? ''),
  }))
}

/** Invariant I9: an idempotency key belongs to exactly one job. */
function checkKeys(records: readonly Recorded[], jobs: readonly JobHistory[]): Violation[] {
  const idsOfKey = new Map<string, Set<string>>()
  for (const entry of records) {
    if ((entry.type !== 'submit' && entry.type !== 'row') || entry.job_id === undefined) continue
    const ids = idsOfKey.get(entry.key) ?? new Set()
    idsOfKey.set(entry.key, ids.add(entry.job_id))
  }
  const doubled = [...idsOfKey].flatMap(([key, ids]) =>
    ids.size < 2 ? [] : [...ids].map((job_id) => ({ rule: 'I9 key', job_id, problem: `key ${key} is ${[...ids]}` })),
  )
  const shared = jobs.flatMap(({ id, entries }) => {
    const keys = new Set(entries.flatMap((entry) => (entry.type === 'submit' || entry.type === 'row' ? entry.key : [])))
    return keys.size < 2 ? [] : [{ rule: 'I9 key', job_id: id, problem: `one job for the keys ${[...keys]}` }]
  })
  return [...doubled, ...shared]
}

/**
 * Invariant I7: a job may lose its worker only after a fault of a worker or of the database. A process that exited by itself does not count as a
 * fault.
 *
 * The field `crashes` in the row of a job must count each lost worker. One exception: a worker that survived a freeze or a fault of the
 * database renews its lease late, which cancels the count.
 */
function checkLosses(records: readonly Recorded[], jobs: readonly JobHistory[], beginWallMs: number): Violation[] {
  const allFaults = records.filter((entry) => entry.type === 'fault')
  return jobs.flatMap(({ id, events, row }) => {
    const pool = row?.pool ?? 'inference'
    const faults = allFaults.filter(({ target }) => target.startsWith(`${pool}-`) || isStoreFault(target))
    const outlived = faults.filter(({ kind, target }) => kind === 'freeze' || isStoreFault(target))
    const losses = events.filter(({ event, reason }) => event === 'job.retrying' && reason === 'worker_lost')
    const explainedBy = (causes: readonly Recorded[]) =>
      losses.filter(({ wall_ms }) => {
        const lostAt = wall_ms - beginWallMs
        return causes.some(({ at_ms }) => at_ms <= lostAt && lostAt <= at_ms + FAULT_ECHO_MS)
      }).length
    const problems: string[] = []
    if (explainedBy(faults) < losses.length) problems.push('a worker was lost without a fault')
    if (row && losses.length - row.crashes > explainedBy(outlived))
      problems.push(`${losses.length} workers were lost, the row counts ${row.crashes}`)
    return problems.map((problem) => ({ rule: 'I7 losses', job_id: id, problem }))
  })
}

/**
 * Whether a fault hit the database or its pooler. During the fault, no worker can renew its lease. Live workers therefore lose their jobs, and
 * later continue with other jobs.
 */
function isStoreFault(target: string): boolean {
  return target === 'database' || target === 'pooler'
}
