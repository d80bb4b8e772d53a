import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import { isLast, TERMINAL } from '#shared/jobs/durable/follow.ts'
import { EVERY_TENANT } from '#shared/store/store.ts'
import { familyProblems } from './families.ts'
import { shortOf } from './history.ts'
import { type Ended, GRACE_MS, type Outcome, RECOVERY_MS, TURNS_MS } from './outcome.ts'
import type { Wish } from './wish.ts'
import { type Execution, type Script, textOf } from './work.ts'

/** How long work may take to stop. */
const STOP_MS = 1_000
const JOBS_MAX = 1_000
const EVENTS_MAX = 5_000

/** Checks the invariants (docs/internals/design.md, Invariants) against the store's rows and what everybody saw. */
export async function check(outcome: Outcome): Promise<void> {
  const { store, history, told, witness } = outcome
  const { jobs } = await store.list(EVERY_TENANT, { limit: JOBS_MAX })
  const wishes = new Map([...told.accepted].flatMap(([wish, ids]) => [...ids].map((id) => [id, wish] as const)))
  for (const [id, { script }] of wishes) {
    if (!jobs.some((job) => job.id === id)) history.violated(id, `I1: accepted job ${script.ref} is not in the store`)
  }
  checkKeys(jobs, wishes, outcome)
  for (const job of jobs) {
    const events = await store.listEvents(EVERY_TENANT, job.id, 0, EVENTS_MAX)
    const content = await store.findContent(EVERY_TENANT, job.id)
    const executions = witness.executions.filter(({ jobId }) => jobId === job.id)
    const { isEndless = false } = (content?.request as { body: Partial<Script> } | undefined)?.body ?? {}
    const ended = { job, events, result: content?.result ?? null, executions, wish: wishes.get(job.id), isEndless }
    checkJob(ended, outcome)
    for (const problem of await familyProblems(ended, outcome)) history.violated(job.id, problem)
  }
}

/** I9: one job for each key; without one, at most as many as were asked for. */
function checkKeys(jobs: readonly DurableJob[], wishes: ReadonlyMap<string, Wish>, { history, told }: Outcome): void {
  for (const [wish, asked] of told.asked) {
    const same = jobs.filter(({ metadata }) => metadata.ref === wish.script.ref)
    if (same.length <= (wish.hasKey ? 1 : asked)) continue
    const id = [...wishes].find(([, other]) => other === wish)?.[0]
    history.violated(id, `I9: ${same.length} jobs for ${asked} requests: ${same.map((job) => job.id).join(' ')}`)
  }
}

function checkJob(ended: Ended, outcome: Outcome): void {
  const { job } = ended
  const said: string[] = [
    ...(TERMINAL.has(job.state) ? endProblems(ended, outcome) : [`I1: it is still ${job.state}`]),
    ...eventProblems(ended),
    ...outputProblems(ended),
    ...executionProblems(ended, outcome),
    ...toldProblems(ended, outcome),
  ]
  for (const problem of said) outcome.history.violated(job.id, problem)
}

/** I1, I11: the end comes in time, and nothing begins after its start deadline. */
function endProblems({ job, events, wish, isEndless }: Ended, { calmAtMs, leaseMs }: Outcome): string[] {
  const problems: string[] = []
  const latestMs = Math.max(job.deadline_ms, calmAtMs) + GRACE_MS + 2 * leaseMs + TURNS_MS
  const lateMs = (job.finished_at_ms ?? Number.POSITIVE_INFINITY) - latestMs
  if (lateMs > 0) problems.push(`I1: it ended ${lateMs} ms too late`)
  // With so much time left after the faults it must have been tried again.
  const hadTime = job.expires_at_ms > calmAtMs + RECOVERY_MS && !isEndless
  const cause = job.state === 'expired' ? 'expired' : job.error?.code
  if (hadTime && (cause === 'expired' || cause === 'timeout')) problems.push(`I1: ${cause} without a reason`)
  const started = events.filter(({ type }) => type === 'job.started')
  const firstMs = started[0]?.at_ms
  const startByMs = job.created_at_ms + (wish?.runInMs ?? 0) + (wish?.startInMs ?? Number.POSITIVE_INFINITY)
  // What the client asks for is up to its request's way to the store earlier than the store counts.
  if (wish && firstMs !== undefined && firstMs > startByMs)
    problems.push(`I11: it began ${firstMs - startByMs} ms late`)
  if (started.some(({ at_ms }) => at_ms >= job.deadline_ms)) problems.push('I11: it began after its deadline')
  return problems
}

/** I4: numbers without gaps, one end, attempts one after the other. */
function eventProblems({ job, events }: Ended): string[] {
  const problems: string[] = []
  if (events.some(({ seq }, index) => seq !== index + 1)) problems.push(`I4: events ${events.map(shortOf).join(' ')}`)
  if (events.length !== job.last_seq) problems.push(`I4: ${events.length} events, last_seq ${job.last_seq}`)
  const ends = events.filter(isLast)
  const end = events.at(-1)
  if (ends.length > 1 || ends[0]?.seq !== (TERMINAL.has(job.state) ? end?.seq : undefined)) {
    problems.push(`I3: it is ${job.state}, its ends are ${ends.map(shortOf).join(' ') || 'none'}`)
  }
  if (TERMINAL.has(job.state) && end?.type !== `job.${job.state}`) {
    problems.push(`I3: it is ${job.state}, its last event is ${end?.type}`)
  }
  const starts = events.filter(({ type }) => type === 'job.started')
  if (starts.some(({ attempt }, index) => attempt !== index + 1)) problems.push('I4: attempts are not in order')
  if (starts.length !== job.attempt) problems.push(`I4: ${starts.length} starts, attempt ${job.attempt}`)
  return problems
}

/** I5: the result is what one attempt said, the last one, and all of it. */
function outputProblems({ job, events, result, wish }: Ended): string[] {
  if (job.state !== 'completed' || !wish || wish.plan) return []
  const expected = textOf(wish.script, job.attempt)
  const text = (result as { text: string } | null)?.text
  const problems = text === expected ? [] : [`I5: the result is '${text}' instead of '${expected}'`]
  if (!job.stream) return problems
  const reset = events.findLastIndex(({ type }) => type === 'job.retrying')
  const deltas = events.slice(reset + 1).filter(({ type }) => type === 'job.output.delta')
  const joined = deltas.map(({ data }) => (data as { chunk: { text: string } }).chunk.text).join('')
  if (joined !== expected) problems.push(`I5: the output joins to '${joined}' instead of '${expected}'`)
  return problems
}

/** I7, I8: each execution is a numbered attempt, a second one needs a reason, and the first then stops. */
function executionProblems({ job, events, executions }: Ended, outcome: Outcome): string[] {
  const problems: string[] = []
  const retries = events.filter(isBreak)
  const last = events.at(-2)
  const isBetween = job.state === 'expired' || (last !== undefined && isBreak(last))
  if (TERMINAL.has(job.state) && job.attempt > 0 && retries.length !== job.attempt - (isBetween ? 0 : 1)) {
    problems.push(`I7: attempt ${job.attempt} after ${retries.length} retries`)
  }
  const runs = executions.map(({ attempt, process }) => `${attempt} ${process.name}`)
  if (new Set(executions.map(({ attempt }) => attempt)).size < runs.length) problems.push(`I7: it ran twice: ${runs}`)
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
  if (own[0]?.type !== 'job.started') return [`I7: ${run} was never given out`]
  if (process.isDead) return []
  if (endedAtMs === Number.POSITIVE_INFINITY) return [`I8: ${run} still runs`]
  const over = own.find((event) => isBreak(event) || isLast(event))
  const reason = over && reasonOf(over)
  const next = executions.find((other) => other.attempt === attempt + 1)
  const isOverlap = next !== undefined && next.startedAtMs < endedAtMs
  // Only a process that stood still does not notice that its lease ends.
  const stoodStill = process.pauses.some(({ fromMs, toMs }) => fromMs < (next?.startedAtMs ?? 0) && toMs > startedAtMs)
  if (isOverlap && !(reason === 'worker_lost' && stoodStill)) {
    return [`I7: ${run} and the next overlap: ${reason}, ${endedAtMs - next.startedAtMs} ms`]
  }
  // A worker that was told what it owns must not go on with anything else.
  const overAtMs = over?.at_ms ?? Number.POSITIVE_INFINITY
  const told = process.renewals.find(
    ({ askedAtMs, toldAtMs }) => askedAtMs > overAtMs && toldAtMs + STOP_MS < endedAtMs,
  )
  return told ? [`I8: ${run} went on for ${endedAtMs - overAtMs} ms after it was over`] : []
}

/** I7: what a process that lives runs is taken from it only when its lease is over, and not right after an outage. */
function leaseProblem({ attempt, process }: Execution, events: readonly DurableEvent[], outcome: Outcome): string[] {
  const { leaseMs, outages } = outcome
  const lost = events.find((event) => event.attempt === attempt && reasonOf(event) === 'worker_lost')
  if (!lost || process.isDead) return []
  const renewal = process.renewals.findLast(({ toldAtMs }) => toldAtMs <= lost.at_ms)
  const leftMs = (renewal?.askedAtMs ?? 0) + leaseMs - lost.at_ms
  const isEarly = outages.some(({ port, fromMs, toMs }) => {
    return port === 'store' && toMs - fromMs > leaseMs && lost.at_ms > toMs && lost.at_ms < toMs + leaseMs
  })
  const taken = `attempt ${attempt} was taken from ${process.name}`
  if (leftMs > 0) return [`I7: ${taken} ${leftMs} ms before its lease was over`]
  return isEarly ? [`I7: ${taken} before it could renew its lease after the outage`] : []
}

/** An attempt ended here, and another one is to follow. */
function isBreak({ type }: DurableEvent): boolean {
  return type === 'job.retrying' || type === 'job.waiting'
}

function reasonOf({ type, data }: DurableEvent): string | undefined {
  return type === 'job.retrying' ? (data as { reason: string }).reason : undefined
}

/** I3, I6, I10: what anybody was told is what is so. */
function toldProblems({ job, events }: Ended, { told }: Outcome): string[] {
  const problems: string[] = []
  const stored = events.map((event) => JSON.stringify(event))
  for (const follower of told.followed.filter(({ id }) => id === job.id)) {
    const differs = follower.events.findIndex((event, index) => JSON.stringify(event) !== stored[index])
    const event = follower.events[differs]
    if (event) problems.push(`I3: a follower saw ${shortOf(event)}, which is not what is stored`)
    if (follower.events.length < stored.length)
      problems.push(`I6: a follower saw ${follower.events.length} events only`)
  }
  const cancelling = events.find(({ type }) => type === 'job.cancelling')
  if (events.some(({ type, seq }) => type === 'job.started' && seq > (cancelling?.seq ?? seq))) {
    problems.push('I10: it began once more after a cancel was asked for')
  }
  if (told.cancelled.has(job.id) && job.state !== 'cancelled') problems.push(`I10: cancelled became ${job.state}`)
  for (const ended of told.ended.filter(({ id }) => id === job.id)) {
    if (JSON.stringify(ended) !== JSON.stringify(job)) problems.push(`I2: it was ${ended.state}, and is ${job.state}`)
  }
  return problems
}
