import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import { isLast, TERMINAL } from '#shared/jobs/durable/follow.ts'
import { ALL_TENANTS } from '#shared/store/store.ts'
import { familyProblems } from './families.ts'
import { shortOf } from './history.ts'
import type { JobRequest } from './job-request.ts'
import { type Ended, GRACE_MS, type Outcome, RECOVERY_MS, TURNS_MS } from './outcome.ts'
import { type Execution, type Script, textOf } from './work.ts'

/** Maximum time for which a worker may continue to run an attempt after it received the information that the attempt has ended. */
const STOP_MS = 1_000
const JOBS_MAX = 1_000
const EVENTS_MAX = 5_000

/** Checks the invariants (docs/internals/design.md, Invariants) against the rows of the store and the observations of clients and workers. */
export async function check(outcome: Outcome): Promise<void> {
  const { store, history, received, witness } = outcome
  const { jobs } = await store.list(ALL_TENANTS, { limit: JOBS_MAX })
  const requestsById = new Map(
    [...received.accepted].flatMap(([request, ids]) => [...ids].map((id) => [id, request] as const)),
  )
  for (const [id, { script }] of requestsById) {
    if (!jobs.some((job) => job.id === id)) history.violated(id, `I1: accepted job ${script.ref} is not in the store`)
  }
  checkKeys(jobs, requestsById, outcome)
  for (const job of jobs) {
    const events = await eventsOf(store, job.id)
    const content = await store.findContent(ALL_TENANTS, job.id)
    const executions = witness.executions.filter(({ jobId }) => jobId === job.id)
    const { isEndless = false } = (content?.request as { body: Partial<Script> } | undefined)?.body ?? {}
    const ended = {
      job,
      events,
      result: content?.result ?? null,
      executions,
      request: requestsById.get(job.id),
      isEndless,
    }
    checkJob(ended, outcome)
    for (const problem of await familyProblems(ended, outcome)) history.violated(job.id, problem)
  }
}

/** All events of a job, read page by page. */
async function eventsOf(store: Outcome['store'], id: string): Promise<DurableEvent[]> {
  const events: DurableEvent[] = []
  for (;;) {
    const page = await store.listEvents(ALL_TENANTS, id, events.at(-1)?.seq ?? 0, EVENTS_MAX)
    if (page.length === 0) return events
    events.push(...page)
  }
}

/** Invariant I9: requests with one idempotency key create one job. A request without a key creates at most one job per submission. */
function checkKeys(
  jobs: readonly DurableJob[],
  requestsById: ReadonlyMap<string, JobRequest>,
  { history, received }: Outcome,
): void {
  for (const [request, asked] of received.asked) {
    const same = jobs.filter(({ metadata }) => metadata.ref === request.script.ref)
    if (same.length <= (request.hasKey ? 1 : asked)) continue
    const id = [...requestsById].find(([, other]) => other === request)?.[0]
    history.violated(id, `I9: ${same.length} jobs for ${asked} requests: ${same.map((job) => job.id).join(' ')}`)
  }
}

function checkJob(ended: Ended, outcome: Outcome): void {
  const { job } = ended
  const said: string[] = [
    ...(TERMINAL.has(job.state) ? endProblems(ended, outcome) : [`I1: state is still ${job.state}`]),
    ...eventProblems(ended),
    ...outputProblems(ended),
    ...executionProblems(ended, outcome),
    ...receivedProblems(ended, outcome),
  ]
  for (const problem of said) outcome.history.violated(job.id, problem)
}

/** Invariants I1 and I11: the job ends in time, and no attempt starts after the start deadline. */
function endProblems({ job, events, request, isEndless }: Ended, { calmAtMs, leaseMs }: Outcome): string[] {
  const problems: string[] = []
  const latestMs = Math.max(job.deadline_ms, calmAtMs) + GRACE_MS + 2 * leaseMs + TURNS_MS
  const lateMs = (job.finished_at_ms ?? Number.POSITIVE_INFINITY) - latestMs
  if (lateMs > 0) problems.push(`I1: ended ${lateMs} ms too late`)
  // If the deadline of a job is long after the end of the faults, then there was time to run the job. Such a job must not expire or time out.
  const hadTime = job.expires_at_ms > calmAtMs + RECOVERY_MS && !isEndless
  const cause = job.state === 'expired' ? 'expired' : job.error?.code
  if (hadTime && (cause === 'expired' || cause === 'timeout')) problems.push(`I1: ${cause} without a cause`)
  const started = events.filter(({ type }) => type === 'job.started')
  const firstMs = started[0]?.at_ms
  const startByMs = job.created_at_ms + (request?.runInMs ?? 0) + (request?.startInMs ?? Number.POSITIVE_INFINITY)
  // The start deadline is computed from the client's request, so that a wrong value in the row of the job is detected.
  if (request && firstMs !== undefined && firstMs > startByMs)
    problems.push(`I11: started ${firstMs - startByMs} ms after the start deadline`)
  if (started.some(({ at_ms }) => at_ms >= job.deadline_ms)) problems.push('I11: started after the deadline of the job')
  return problems
}

/** Invariant I4: event numbers have no gaps, there is one terminal event, and attempts do not overlap. */
function eventProblems({ job, events }: Ended): string[] {
  const problems: string[] = []
  if (events.some(({ seq }, index) => seq !== index + 1)) problems.push(`I4: events ${events.map(shortOf).join(' ')}`)
  if (events.length !== job.last_seq) problems.push(`I4: ${events.length} events, last_seq ${job.last_seq}`)
  const ends = events.filter(isLast)
  const end = events.at(-1)
  if (ends.length > 1 || ends[0]?.seq !== (TERMINAL.has(job.state) ? end?.seq : undefined)) {
    problems.push(`I3: state is ${job.state}, terminal events are ${ends.map(shortOf).join(' ') || 'none'}`)
  }
  if (TERMINAL.has(job.state) && end?.type !== `job.${job.state}`) {
    problems.push(`I3: state is ${job.state}, the last event is ${end?.type}`)
  }
  const starts = events.filter(({ type }) => type === 'job.started')
  if (starts.some(({ attempt }, index) => attempt !== index + 1)) problems.push('I4: attempts are not in order')
  if (starts.length !== job.attempt) problems.push(`I4: ${starts.length} starts, attempt ${job.attempt}`)
  return problems
}

/** Invariant I5: the result is the complete output of the last attempt, without output of other attempts. */
function outputProblems({ job, events, result, request }: Ended): string[] {
  if (job.state !== 'completed' || !request || request.plan) return []
  const expected = textOf(request.script, job.attempt)
  const text = (result as { text: string } | null)?.text
  const problems = text === expected ? [] : [`I5: the result is '${text}' instead of '${expected}'`]
  if (!job.stream) return problems
  const reset = events.findLastIndex(({ type }) => type === 'job.retrying')
  const deltas = events.slice(reset + 1).filter(({ type }) => type === 'job.output.delta')
  const joined = deltas.map(({ data }) => (data as { chunk: { text: string } }).chunk.text).join('')
  if (joined !== expected) problems.push(`I5: the output concatenates to '${joined}' instead of '${expected}'`)
  return problems
}

/**
 * Invariants I7 and I8: each execution has its own attempt number. A second attempt needs a cause, such as a lost worker. After this cause, the first
 * attempt must stop.
 */
function executionProblems({ job, events, executions }: Ended, outcome: Outcome): string[] {
  const problems: string[] = []
  const retries = events.filter(isBreak)
  const last = events.at(-2)
  const isBetween = job.state === 'expired' || (last !== undefined && isBreak(last))
  if (TERMINAL.has(job.state) && job.attempt > 0 && retries.length !== job.attempt - (isBetween ? 0 : 1)) {
    problems.push(`I7: attempt ${job.attempt} after ${retries.length} retries`)
  }
  const runs = executions.map(({ attempt, process }) => `${attempt} ${process.name}`)
  if (new Set(executions.map(({ attempt }) => attempt)).size < runs.length) problems.push(`I7: ran twice: ${runs}`)
  for (const execution of executions) {
    problems.push(...executionProblem(execution, { events, executions }), ...leaseProblem(execution, events, outcome))
  }
  return problems
}

function executionProblem(
  execution: Execution,
  { events, executions }: Pick<Ended, 'events' | 'executions'>,
): string[] {
  const { attempt, process, startedAtMs, endedAtMs = Number.POSITIVE_INFINITY } = execution
  const run = `attempt ${attempt} on ${process.name}`
  const own = events.filter((event) => event.attempt === attempt)
  if (own[0]?.type !== 'job.started') return [`I7: ${run} was never claimed`]
  if (process.isDead) return []
  if (endedAtMs === Number.POSITIVE_INFINITY) return [`I8: ${run} is still running`]
  const over = own.find((event) => isBreak(event) || isLast(event))
  const reason = over && reasonOf(over)
  const next = executions.find((other) => other.attempt === attempt + 1)
  const isOverlap = next !== undefined && next.startedAtMs < endedAtMs
  // A worker stops its runs before its lease ends, so runs do not overlap. A worker that is paused cannot stop its run, so this run may
  // overlap with the next one.
  const stoodStill = process.pauses.some(({ fromMs, toMs }) => fromMs < (next?.startedAtMs ?? 0) && toMs > startedAtMs)
  if (isOverlap && !(reason === 'worker_lost' && stoodStill)) {
    return [`I7: ${run} and the next overlap: ${reason}, ${endedAtMs - next.startedAtMs} ms`]
  }
  // Each response to a lease renewal lists the runs that the worker has in the store. The worker must stop every run that is not in the list.
  const overAtMs = over?.at_ms ?? Number.POSITIVE_INFINITY
  const received = process.renewals.find(
    ({ askedAtMs, renewedAtMs }) => askedAtMs > overAtMs && renewedAtMs + STOP_MS < endedAtMs,
  )
  return received ? [`I8: ${run} ran on for ${endedAtMs - overAtMs} ms after its end`] : []
}

/**
 * Invariant I7: a job may be taken from a live process only after the end of its lease. After an outage of the store, the process first gets time to
 * renew its lease.
 */
function leaseProblem({ attempt, process }: Execution, events: readonly DurableEvent[], outcome: Outcome): string[] {
  const { leaseMs, outages } = outcome
  const lost = events.find((event) => event.attempt === attempt && reasonOf(event) === 'worker_lost')
  if (!lost || process.isDead) return []
  const renewal = process.renewals.findLast(({ renewedAtMs }) => renewedAtMs <= lost.at_ms)
  const leftMs = (renewal?.askedAtMs ?? 0) + leaseMs - lost.at_ms
  const isEarly = outages.some(({ port, fromMs, toMs }) => {
    return port === 'store' && toMs - fromMs > leaseMs && lost.at_ms > toMs && lost.at_ms < toMs + leaseMs
  })
  const taken = `attempt ${attempt} was taken from ${process.name}`
  if (leftMs > 0) return [`I7: ${taken} ${leftMs} ms before the end of its lease`]
  return isEarly ? [`I7: ${taken} before it could renew its lease after the outage`] : []
}

/** Whether an event ends an attempt and announces another one. */
function isBreak({ type }: DurableEvent): boolean {
  return type === 'job.retrying' || type === 'job.waiting'
}

function reasonOf({ type, data }: DurableEvent): string | undefined {
  return type === 'job.retrying' ? (data as { reason: string }).reason : undefined
}

/** Invariants I3, I6 and I10: every response and event that a client received agrees with the stored job. */
function receivedProblems({ job, events }: Ended, { received }: Outcome): string[] {
  const problems: string[] = []
  const stored = events.map((event) => JSON.stringify(event))
  for (const follower of received.followed.filter(({ id }) => id === job.id)) {
    const differs = follower.events.findIndex((event, index) => JSON.stringify(event) !== stored[index])
    const event = follower.events[differs]
    if (event) problems.push(`I3: a follower received ${shortOf(event)}, which differs from the stored event`)
    if (follower.events.length < stored.length)
      problems.push(`I6: a follower received only ${follower.events.length} events`)
  }
  const cancelling = events.find(({ type }) => type === 'job.cancelling')
  if (events.some(({ type, seq }) => type === 'job.started' && seq > (cancelling?.seq ?? seq))) {
    problems.push('I10: started again after a cancel request')
  }
  if (received.cancelled.has(job.id) && job.state !== 'cancelled')
    problems.push(`I10: reported as cancelled, but became ${job.state}`)
  for (const ended of received.ended.filter(({ id }) => id === job.id)) {
    if (JSON.stringify(ended) !== JSON.stringify(job))
      problems.push(`I2: reported as ${ended.state}, and is ${job.state}`)
  }
  return problems
}
