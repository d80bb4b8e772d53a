/**
 * State transitions of durable jobs in SQL, each with its guard (docs/internals/protocol.md, State transitions).
 *
 * The SQL is shared by Postgres and SQLite, so the adapters cannot diverge. Each adapter makes a transition atomic with its event, output and webhook
 * message (shared/store/postgres/transition.ts, shared/store/sqlite/sqlite.ts). `now_ms()` is the clock of the database in Unix milliseconds. In `set`,
 * column names mean the row before the transition; in `event` and `data`, the row after it. A requested cancel wins over every transition back to
 * queued.
 */
export interface Transition {
  readonly name: string
  readonly set: string
  readonly where?: string
  /** For a sweep: the jobs to change, at most `:limit`, each locked until the commit. */
  readonly pick?: { readonly from: string; readonly where: string; readonly order: string; readonly lock: string }
  /** For a sweep that serves tenants round robin ({@link pickFair}): the condition for the jobs. */
  readonly pickFair?: string
  readonly event?: string
  readonly data?: string
  /** True for a write of the job's owner, which has the number `:chunk` and optional output. */
  readonly isOwners?: boolean
  readonly givesRequest?: boolean
  /** Other rows that `set` reads, and the name for them. The rows are locked until the commit. */
  readonly reads?: { readonly name: string; readonly sql: (from: string) => string; readonly lock: string }
  /** Additional inserts that read the changed rows. @param moved Name of the table expression with these rows */
  readonly also?: readonly ((moved: string) => string)[]
}

const WAITING = `jobs.state IN ('queued', 'scheduled')`
/** SQL condition: no worker owns the job, which is queued, scheduled or waiting for children. */
const IDLE = `jobs.state IN ('queued', 'scheduled', 'waiting')`
export const END = `finished_at_ms = now_ms(), purge_at_ms = now_ms() + retention_ms`
export const endWhen = (condition: string) =>
  `finished_at_ms = CASE WHEN ${condition} THEN now_ms() END,
   purge_at_ms = CASE WHEN ${condition} THEN now_ms() + retention_ms END`
export const CANCEL_REQUESTED = 'cancel_requested_at_ms IS NOT NULL'
/** SQL condition: a cancel was requested, and no grace period for a partial result remains. */
export const CANCEL_DUE = `${CANCEL_REQUESTED} AND (partial_ms IS NULL OR expires_at_ms <= now_ms())`
/**
 * State of a job that is found by its id. The concatenation prevents the use of an index of states. Otherwise, a plan that was made while
 * such an index was empty would scan the whole index for each job.
 */
export const STATE = `jobs.state || ''`

/** True if readers must discard earlier output, because the next attempt starts from the beginning. */
export const outputReset = `CASE WHEN has_output THEN 'true' ELSE 'false' END`

const CLAIMED = `state = 'in_progress', attempt = attempt + 1, owner = CAST(:owner AS text), chunk = 0, has_output = FALSE,
  expires_at_ms = CASE WHEN ${CANCEL_REQUESTED} THEN expires_at_ms ELSE deadline_ms END, started_at_ms = coalesce(started_at_ms, now_ms())`
/** A process whose lease has expired must not claim: the reaper would take the job at once and count a crash. */
const MAY_CLAIM = `expires_at_ms > now_ms()
  AND EXISTS (SELECT 1 FROM processes WHERE boot = CAST(:owner AS text) AND lease_until_ms > now_ms())`

/** A worker claims a queued job before its expiry: the boot id becomes the owner, and the attempt increases. */
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

/** Guard of every write by the owner: the job is in progress, in the expected attempt, and no write was lost or repeated. */
export const OWNED = `id = :id AND ${STATE} = 'in_progress' AND attempt = :attempt AND owner = :owner
               AND chunk = CAST(:chunk AS int)`
export const WRITTEN = `chunk = chunk + 1, has_output = has_output OR CAST(:has_output AS boolean),
  progress = coalesce(:progress, progress), output_bytes = output_bytes + CAST(:bytes AS bigint)`

/** The owner appends output and progress. The guard {@link OWNED} rejects the write if another worker owns the job by now. */
export const APPEND: Transition = {
  name: 'append',
  isOwners: true,
  set: WRITTEN,
  where: OWNED,
}

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
  set: `${WRITTEN}, state = 'failed', error = :error, metered = :metered, ${END}`,
  where: OWNED,
  event: `'job.failed'`,
}

/** The owner returns a job for a delayed retry. A requested cancel ends the job here, because no owner remains to honour it. */
export const RETRY: Transition = {
  name: 'retry',
  isOwners: true,
  set: `${WRITTEN}, tries = tries + CAST(:used AS integer), run_at_ms = now_ms() + CAST(:delay_ms AS bigint),
        state = CASE WHEN ${CANCEL_DUE} THEN 'cancelled' ELSE 'scheduled' END, ${endWhen(CANCEL_DUE)}`,
  where: OWNED,
  event: `CASE state WHEN 'cancelled' THEN 'job.cancelled' ELSE 'job.retrying' END`,
  data: `CASE state WHEN 'cancelled' THEN NULL ELSE '{"reason":"' || CAST(:reason AS text)
         || '","delay_ms":' || CAST(:delay_ms AS bigint)
         || ',"output_reset":' || ${outputReset} || '}' END`,
}

/** A draining worker returns a job. The attempt number never decreases, and no try is used up. */
export const HAND_BACK: Transition = {
  name: 'hand_back',
  isOwners: true,
  set: `${WRITTEN}, published_at_ms = now_ms(),
        state = CASE WHEN ${CANCEL_DUE} THEN 'cancelled' ELSE 'queued' END, ${endWhen(CANCEL_DUE)}`,
  where: OWNED,
  event: `CASE state WHEN 'cancelled' THEN 'job.cancelled' ELSE 'job.retrying' END`,
  data: `CASE state WHEN 'cancelled' THEN NULL ELSE '{"reason":"handed_back","delay_ms":0,"output_reset":'
         || ${outputReset} || '}' END`,
}

export const HONOUR_CANCEL: Transition = {
  name: 'honour_cancel',
  isOwners: true,
  set: `${WRITTEN}, state = 'cancelled', metered = :metered, ${END}`,
  where: `${OWNED} AND ${CANCEL_REQUESTED}`,
  event: `'job.cancelled'`,
}

/** SQL condition: first cancel of a job that may write a partial result. */
const WRAPS_UP = `cancel_requested_at_ms IS NULL AND partial_ms IS NOT NULL AND CAST(:how AS text) <> 'final'`
/**
 * SQL condition: first cancel of a job that may write a partial result, has recorded steps and has no owner. Such a job is queued
 * again.
 */
const GOES_ON = `${IDLE} AND steps > 0 AND ${WRAPS_UP}`
const ENDS = `${IDLE} AND NOT (${GOES_ON})`
const PARTIAL_UNTIL = `CASE WHEN now_ms() + partial_ms < deadline_ms THEN now_ms() + partial_ms ELSE deadline_ms END`

/**
 * A caller cancels a queued job, or requests the cancel of a running one, once. A job that may write a partial result gets a grace period, and is
 * queued if it has no owner. The next cancel, or the end of that period, ends the job.
 */
export const CANCEL: Transition = {
  name: 'cancel',
  givesRequest: true,
  set: `cancel_requested_at_ms = now_ms(),
        expires_at_ms = CASE WHEN ${WRAPS_UP} THEN ${PARTIAL_UNTIL} WHEN partial_ms IS NOT NULL THEN now_ms()
                             ELSE expires_at_ms END,
        published_at_ms = CASE WHEN ${GOES_ON} THEN now_ms() ELSE published_at_ms END,
        state = CASE WHEN ${GOES_ON} THEN 'queued' WHEN ${IDLE} THEN 'cancelled' ELSE state END, ${endWhen(ENDS)}`,
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

/** Republishes jobs that were published long ago and are still queued: Kafka may have lost them. */
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

/** Sweep: jobs whose maximum wait has passed expire. Cancelled jobs whose grace period has passed end as cancelled. */
export const EXPIRE: Transition = {
  name: 'expire',
  set: `state = CASE WHEN ${CANCEL_REQUESTED} THEN 'cancelled' ELSE 'expired' END, ${END}`,
  pick: { from: 'jobs', where: `${WAITING} AND expires_at_ms <= now_ms()`, order: 'expires_at_ms', lock: 'jobs' },
  event: `'job.' || state`,
}

/**
 * Clock corrections smaller than this, in ms, are tolerated in leases. The value exceeds the time for which a statement waits for a lock.
 */
export const SET_BACK_MS = 60_000
const REAPED_LOST = `NOT (${CANCEL_DUE}) AND deadline_ms > now_ms()`
const POISON = 'crashes + 1 >= CAST(:crashes_max AS int)'
/** Remaining grace period of a cancelled job for a partial result; 0 if a second cancel ended the period. */
const PARTIAL_LEFT = `CASE WHEN jobs.expires_at_ms > jobs.cancel_requested_at_ms THEN coalesce(jobs.partial_ms, 0) ELSE 0 END`
const REQUEUED = `${REAPED_LOST} AND NOT ${POISON}`

/**
 * Ends or requeues jobs whose owners failed to do so. Reasons: an expired lease, a cancel not honoured in time, or a deadline long past.
 *
 * The reaper must have held its lease for one whole lease of the owner. Otherwise every lease looks expired after an outage (docs/internals/design.md, Failure detection).
 * A lease that ends too far in the future also counts as expired: the clock was set back. The reaper's own lease then starts anew, so live owners
 * have time to renew.
 *
 * The owner is joined rather than looked up in a subquery. The row may change hands while this statement waits for its lock. Then Postgres checks the
 * join again with the new owner and skips the row. A subquery would use the old snapshot, in which a new owner may not exist. The owner's lease row
 * is locked too, so that no renewal intervenes.
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
