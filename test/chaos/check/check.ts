import type { Expectation, JobHistory, Of, Recorded } from './history.ts'
import { checkJob, isAccepted, type Violation } from './job.ts'

/** What the checker found. */
export interface Verdict {
  readonly seed: number
  readonly jobs: readonly JobHistory[]
  readonly violations: readonly Violation[]
}

/** How long after the end of a fault a worker may be found lost because of it: a lease, its reaper's wait, and a restart. */
const FAULT_ECHO_MS = 60_000

/** Judges a whole run: every job by itself, the keys that join them, and the losses by the faults. */
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

/** Jobs that somebody holds a promise about. */
export function acceptedOf(verdict: Verdict): JobHistory[] {
  return verdict.jobs.filter(isAccepted)
}

/** The history of the job that broke a rule with the fewest entries, for people; empty when all is well. */
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

/** Single pass: everything by job, and submissions by the job that their key became. */
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

/** Joins parents and children, one level of them. */
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

/** I9: one key is one job, and one job has one key. */
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
    return keys.size < 2 ? [] : [{ rule: 'I9 key', job_id: id, problem: `it stands for the keys ${[...keys]}` }]
  })
  return [...doubled, ...shared]
}

/**
 * I7: a worker is found lost only after something was done to a worker or to the database; one that ended by itself is no
 * excuse. The row counts each loss, but for those of workers that came back, as killed ones never do.
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
    if (explainedBy(faults) < losses.length) problems.push('its worker was found lost, and no fault explains it')
    if (row && losses.length - row.crashes > explainedBy(outlived))
      problems.push(`${losses.length} workers were lost, its row counts ${row.crashes}`)
    return problems.map((problem) => ({ rule: 'I7 losses', job_id: id, problem }))
  })
}

/** The database, and the pooler in front of it: without either a worker loses its lease and comes back. */
function isStoreFault(target: string): boolean {
  return target === 'database' || target === 'pooler'
}
