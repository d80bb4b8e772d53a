/**
 * State transitions of durable jobs in SQL, each with its guard (docs/internals/protocol.md, State transitions).
 *
 * Postgres and SQLite share the SQL, so both adapters behave alike. Each adapter writes a transition atomically with its event, output and webhook
 * message (shared/store/postgres/transition.ts, shared/store/sqlite/sqlite.ts).
 *
 * `now_ms()` is the clock of the database in Unix milliseconds. In `set`, a column means its value before the transition. In `event` and `data`, a
 * column means its value afterwards. A job with a cancel request never becomes queued again, unless it may still write a partial result.
 */
export interface Transition {
  readonly name: string
  readonly set: string
  readonly where?: string
  /** For a sweep: the selection of its jobs (tables, condition and order), at most `:limit`. The rows of `lock` are locked until the commit. */
  readonly pick?: { readonly from: string; readonly where: string; readonly order: string; readonly lock: string }
  /** Condition for the jobs of a sweep that serves tenants round robin ({@link pickFair}). */
  readonly pickFair?: string
  readonly event?: string
  readonly data?: string
  /** True for a write by the job's holder, the worker that has claimed the job. Such a write has a number (`:chunk`) and optional output. */
  readonly isOwners?: boolean
  readonly givesRequest?: boolean
  /** Rows of other tables that `set` reads, under the name `name`. These rows are locked until the commit. */
  readonly reads?: { readonly name: string; readonly sql: (from: string) => string; readonly lock: string }
  /**
   * Additional inserts in the same transaction.
   *
   * @param moved Name of the table expression with the changed rows
   */
  readonly also?: readonly ((moved: string) => string)[]
}

const WAITING = `jobs.state IN ('queued', 'scheduled')`
/** SQL condition: no worker holds the job, because it is queued, scheduled or waiting for children. */
const IDLE = `jobs.state IN ('queued', 'scheduled', 'waiting')`
export const END = `finished_at_ms = now_ms(), purge_at_ms = now_ms() + retention_ms`
export const endWhen = (condition: string) =>
  `finished_at_ms = CASE WHEN ${condition} THEN now_ms() END,
   purge_at_ms = CASE WHEN ${condition} THEN now_ms() + retention_ms END`
export const CANCEL_REQUESTED = 'cancel_requested_at_ms IS NOT NULL'
/** SQL condition: a cancel was requested, and the grace period for a partial result is over or does not exist. */
export const CANCEL_DUE = `${CANCEL_REQUESTED} AND (partial_ms IS NULL OR expires_at_ms <= now_ms())`
/**
 * State of a job that is found by its id. The concatenation with '' prevents the use of an index of states. Postgres may make a plan while such an
 * index is empty and keep it. That plan would later scan the whole index for each job.
 */
export const STATE = `jobs.state || ''`

/** SQL expression: true if readers must discard earlier output, because the next attempt starts from the beginning. */
export const outputReset = `CASE WHEN has_output THEN 'true' ELSE 'false' END`

const CLAIMED = `state = 'in_progress', attempt = attempt + 1, owner = CAST(:owner AS text), chunk = 0, has_output = FALSE,
  expires_at_ms = CASE WHEN ${CANCEL_REQUESTED} THEN expires_at_ms ELSE deadline_ms END, started_at_ms = coalesce(started_at_ms, now_ms())`
/**
 * SQL condition: the lease of the claiming process is valid. Otherwise the reaper would requeue the job at once and
 * count a crash.
 */
const MAY_CLAIM = `expires_at_ms > now_ms()
  AND EXISTS (SELECT 1 FROM processes WHERE boot = CAST(:owner AS text) AND lease_until_ms > now_ms())`

/**
 * State transition: a worker claims a queued job before its expiry. The worker becomes the holder of the job: its id (`boot`) is stored in the
 * column `owner`. The attempt number increases.
 */
export const CLAIM: Transition = {
  name: 'claim',
  set: CLAIMED,
  where: `id = :id AND ${STATE} = 'queued' AND ${MAY_CLAIM}`,
  event: `'job.started'`,
}

export const CLAIM_NEXT: Transition = {
  name: 'claim_next',
  givesRequest: true,
  set: CLAIMED,
  pickFair: MAY_CLAIM,
  event: `'job.started'`,
}

/**
 * Guard of every write by the holder. The job must be in progress in the same attempt. `:chunk` must be the number of the next write, so that a
 * repeated or outdated write has no effect.
 */
export const OWNED = `id = :id AND ${STATE} = 'in_progress' AND attempt = :attempt AND owner = :owner
               AND chunk = CAST(:chunk AS int)`
export const WRITTEN = `chunk = chunk + 1, has_output = has_output OR CAST(:has_output AS boolean),
  progress = coalesce(:progress, progress), output_bytes = output_bytes + CAST(:bytes AS bigint)`

/** Write by the holder: appends output and progress. */
export const APPEND: Transition = {
  name: 'append',
  isOwners: true,
  set: WRITTEN,
  where: OWNED,
}

/**
 * After an attempt without a result, `usage` is the usage of all attempts so far, to which the next attempt adds its own. `metered` is always the usage
 * of all attempts, for the ledger. A completed job has only the `usage` of its last attempt, as in its result. Failed attempts of a child job therefore
 * do not increase the cost of its parent.
 */
const USED = 'usage = coalesce(:usage, usage), metered = coalesce(:metered, metered)'

export const COMPLETE: Transition = {
  name: 'complete',
  isOwners: true,
  set: `${WRITTEN}, state = 'completed', result = :result, usage = :usage, metered = :metered, ${END}`,
  where: OWNED,
  event: `'job.completed'`,
}

export const FAIL: Transition = {
  name: 'fail',
  isOwners: true,
  set: `${WRITTEN}, state = 'failed', error = :error, ${USED}, ${END}`,
  where: OWNED,
  event: `'job.failed'`,
}

/**
 * State transition: the holder returns a job for a delayed retry. If a cancel is due ({@link CANCEL_DUE}), then the job is cancelled instead, because
 * no worker would stop it later.
 */
export const RETRY: Transition = {
  name: 'retry',
  isOwners: true,
  set: `${WRITTEN}, ${USED}, tries = tries + CAST(:used AS integer), run_at_ms = now_ms() + CAST(:delay_ms AS bigint),
        state = CASE WHEN ${CANCEL_DUE} THEN 'cancelled' ELSE 'scheduled' END, ${endWhen(CANCEL_DUE)}`,
  where: OWNED,
  event: `CASE state WHEN 'cancelled' THEN 'job.cancelled' ELSE 'job.retrying' END`,
  data: `CASE state WHEN 'cancelled' THEN NULL ELSE CAST(:failure AS text) || ',"delay_ms":' || CAST(:delay_ms AS bigint)
         || ',"output_reset":' || ${outputReset} || '}' END`,
}

/** State transition: a draining worker returns a job to the queue. The return does not count as a try. */
export const HAND_BACK: Transition = {
  name: 'hand_back',
  isOwners: true,
  set: `${WRITTEN}, ${USED}, published_at_ms = now_ms(),
        state = CASE WHEN ${CANCEL_DUE} THEN 'cancelled' ELSE 'queued' END, ${endWhen(CANCEL_DUE)}`,
  where: OWNED,
  event: `CASE state WHEN 'cancelled' THEN 'job.cancelled' ELSE 'job.retrying' END`,
  data: `CASE state WHEN 'cancelled' THEN NULL ELSE '{"reason":"handed_back","delay_ms":0,"output_reset":'
         || ${outputReset} || '}' END`,
}

export const HONOUR_CANCEL: Transition = {
  name: 'honour_cancel',
  isOwners: true,
  set: `${WRITTEN}, state = 'cancelled', ${USED}, ${END}`,
  where: `${OWNED} AND ${CANCEL_REQUESTED}`,
  event: `'job.cancelled'`,
}

/** SQL condition: this is the first cancel of a job that may write a partial result. */
const IS_FIRST_PARTIAL_CANCEL = `cancel_requested_at_ms IS NULL AND partial_ms IS NOT NULL AND CAST(:how AS text) <> 'final'`
/**
 * SQL condition: no worker holds the cancelled job, and the job has recorded steps and time for a partial result. Such a job is queued again, so that
 * a worker writes this result.
 */
const QUEUES_FOR_PARTIAL = `${IDLE} AND steps > 0 AND ${IS_FIRST_PARTIAL_CANCEL}`
const ENDS_AT_ONCE = `${IDLE} AND NOT (${QUEUES_FOR_PARTIAL})`
const PARTIAL_UNTIL = `CASE WHEN now_ms() + partial_ms < deadline_ms THEN now_ms() + partial_ms ELSE deadline_ms END`

/**
 * State transition: a caller cancels a job. A job in progress gets a cancel request, and any other job ends. If the job may write a partial result,
 * then it gets time for this instead, and is queued if no worker runs it. The job then ends with the next cancel, or when this time is over.
 */
export const CANCEL: Transition = {
  name: 'cancel',
  givesRequest: true,
  set: `cancel_requested_at_ms = now_ms(),
        expires_at_ms = CASE WHEN ${IS_FIRST_PARTIAL_CANCEL} THEN ${PARTIAL_UNTIL} WHEN partial_ms IS NOT NULL THEN now_ms()
                             ELSE expires_at_ms END,
        published_at_ms = CASE WHEN ${QUEUES_FOR_PARTIAL} THEN now_ms() ELSE published_at_ms END,
        state = CASE WHEN ${QUEUES_FOR_PARTIAL} THEN 'queued' WHEN ${IDLE} THEN 'cancelled' ELSE state END, ${endWhen(ENDS_AT_ONCE)}`,
  where: `id = :id AND tenant = coalesce(:tenant, tenant)
          AND (CAST(:how AS text) <> 'once' OR cancel_requested_at_ms IS NULL)
          AND (${STATE} IN ('queued', 'scheduled', 'waiting') OR (${STATE} = 'in_progress' AND NOT (${CANCEL_DUE})))`,
  event: `CASE state WHEN 'cancelled' THEN 'job.cancelled' ELSE 'job.cancelling' END`,
  data: `CASE WHEN state <> 'cancelled' AND expires_at_ms > cancel_requested_at_ms AND partial_ms IS NOT NULL
              THEN '{"partial":' || 'true}' END`,
}

export const START_DUE: Transition = {
  name: 'start_due',
  givesRequest: true,
  set: `state = 'queued', published_at_ms = now_ms()`,
  pick: {
    from: 'jobs',
    where: `state = 'scheduled' AND run_at_ms <= now_ms() AND expires_at_ms > now_ms()`,
    order: 'run_at_ms',
    lock: 'jobs',
  },
}

/**
 * Sweep: republishes jobs that were published long ago and are still queued, because Kafka may have lost their records.
 */
export const TAKE_UNPUBLISHED: Transition = {
  name: 'take_unpublished',
  givesRequest: true,
  set: 'published_at_ms = now_ms()',
  pick: {
    from: 'jobs',
    where: `state = 'queued' AND pool = :pool AND published_at_ms <= now_ms() - CAST(:older_ms AS bigint)`,
    order: 'published_at_ms',
    lock: 'jobs',
  },
}

/** Sweep: jobs whose maximum wait has passed become expired. Cancelled jobs whose time for a partial result is over become cancelled. */
export const EXPIRE: Transition = {
  name: 'expire',
  set: `state = CASE WHEN ${CANCEL_REQUESTED} THEN 'cancelled' ELSE 'expired' END, ${END}`,
  pick: { from: 'jobs', where: `${WAITING} AND expires_at_ms <= now_ms()`, order: 'expires_at_ms', lock: 'jobs' },
  event: `'job.' || state`,
}

/**
 * Maximum time in ms by which the clock may be set back without an effect on leases. A statement that waited for a lock uses the time of its
 * start, as if the clock had been set back. The value therefore exceeds the maximum wait for a lock.
 */
export const SET_BACK_MS = 60_000
const REAPED_LOST = `NOT (${CANCEL_DUE}) AND deadline_ms > now_ms()`
const POISON = 'crashes + 1 >= CAST(:crashes_max AS int)'
/** SQL expression: time in ms that a cancelled job has for its partial result. 0 if a second cancel ended this time. */
const PARTIAL_LEFT = `CASE WHEN jobs.expires_at_ms > jobs.cancel_requested_at_ms THEN coalesce(jobs.partial_ms, 0) ELSE 0 END`
const REQUEUED = `${REAPED_LOST} AND NOT ${POISON}`

/**
 * Sweep of the reaper: ends or requeues jobs that their holder (column `owner`) failed to end. Reasons are an expired lease, a cancel without effect,
 * or a deadline long past.
 *
 * The reaper must have held its own lease for at least the lease duration of the holder. After an outage of the store all leases have expired, and
 * this wait lets live holders renew them first (docs/internals/design.md, Failure detection).
 *
 * A holder's lease that ends too far in the future counts as expired too: it was written before the clock was set back. Otherwise the job of a dead
 * holder would stay in progress until the clock reaches that end. After the clock was set back, the reaper's own lease also starts anew, so that live
 * holders have time to renew before the reaper acts.
 *
 * The lease of the holder (table `processes`) is joined instead of read by a subquery. While this statement waits for the row lock, the job may get a
 * new holder. Postgres then evaluates the join again with the new holder and skips the row. A subquery would use the old snapshot, in which the new
 * holder may not exist. The row with the lease is locked too, so that the holder cannot renew its lease in the meantime.
 */
export const REAP: Transition = {
  name: 'reap',
  givesRequest: true,
  pick: {
    from: `jobs JOIN processes ON processes.boot = jobs.owner
           JOIN leases ON leases.name = 'reaper' AND leases.holder = :holder AND leases.until_ms > now_ms()
                      AND leases.since_ms + processes.lease_ms <= now_ms()`,
    where: `jobs.state = 'in_progress'
            AND (processes.lease_until_ms <= now_ms()
                 OR processes.lease_until_ms > now_ms() + 2 * (processes.lease_ms + ${SET_BACK_MS})
                 OR jobs.cancel_requested_at_ms + ${PARTIAL_LEFT} <= now_ms() - CAST(:cancel_grace_ms AS bigint)
                 OR jobs.deadline_ms <= now_ms() - CAST(:deadline_grace_ms AS bigint))`,
    order: 'jobs.deadline_ms',
    lock: 'jobs, processes',
  },
  set: `state = CASE WHEN ${REQUEUED} THEN 'queued' WHEN ${CANCEL_REQUESTED} THEN 'cancelled' ELSE 'failed' END,
        error = CASE WHEN ${CANCEL_REQUESTED} THEN NULL
                     WHEN deadline_ms <= now_ms() THEN CAST(:timeout_error AS text)
                     WHEN ${POISON} THEN CAST(:lost_error AS text) END,
        crashes = CASE WHEN ${REAPED_LOST} THEN crashes + 1 ELSE crashes END,
        lost_by = CASE WHEN ${REAPED_LOST} THEN coalesce(lost_by, '') || owner || ' ' ELSE lost_by END,
        published_at_ms = CASE WHEN ${REQUEUED} THEN now_ms() ELSE published_at_ms END,
        ${endWhen(`NOT (${REQUEUED})`)}`,
  event: `CASE state WHEN 'queued' THEN 'job.retrying' ELSE 'job.' || state END`,
  data: `CASE state WHEN 'queued' THEN '{"reason":"worker_lost","delay_ms":0,"output_reset":'
         || ${outputReset} || '}' END`,
}
