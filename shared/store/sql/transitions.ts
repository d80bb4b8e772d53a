/**
 * The protocol in SQL: every change of a durable job's state, with the guard that it needs (docs/design.md, Moves and
 * guards).
 *
 * Written once in the SQL that Postgres and SQLite share, so the adapters cannot drift apart; each adapter wraps a move
 * in what makes it one atomic step with its event, its output and its webhook message (shared/store/postgres/move.ts,
 * shared/store/sqlite/sqlite.ts). `now_ms()` is the database's clock in unix milliseconds. In `set`, names are the row
 * before the move; in `event` and `data`, the row after it. A cancel that was asked for wins over every way back to the
 * queue.
 */
export interface Move {
  /** Unique; names the prepared statement. */
  readonly name: string
  readonly set: string
  /** The guard of a move of one job. */
  readonly where?: string
  /** A sweep: which jobs to move, at most `:limit`, each locked until it has moved. */
  readonly pick?: { readonly from: string; readonly where: string; readonly order: string; readonly lock: string }
  /** A sweep in turn of tenants ({@link pickInTurn}): which of their jobs may be moved. */
  readonly pickInTurn?: string
  /** Type of the event the move writes. None: it writes no event of its own. */
  readonly event?: string
  /** Data of that event, as JSON text. */
  readonly data?: string
  /** A write of the owner: numbered by `:chunk`, and it may carry output. */
  readonly isOwners?: boolean
  /** Gives the request as well, for publishing. */
  readonly givesRequest?: boolean
  /** What `set` goes by in other rows, under a name; they do not change before the move is committed. */
  readonly reads?: { readonly name: string; readonly sql: (from: string) => string; readonly lock: string }
  /** What it inserts elsewhere. @param moved Gives the row that was moved, as `moved` */
  readonly also?: readonly ((moved: string) => string)[]
}

const WAITING = `jobs.state IN ('queued', 'scheduled')`
/** No worker has it, be it that it waits for one or for its children. */
const IDLE = `jobs.state IN ('queued', 'scheduled', 'waiting')`
/** Ends a job. */
export const END = `finished_at_ms = now_ms(), purge_at_ms = now_ms() + retention_ms`
/** For a move that ends the job in some cases only. */
export const endWhen = (condition: string) =>
  `finished_at_ms = CASE WHEN ${condition} THEN now_ms() END,
   purge_at_ms = CASE WHEN ${condition} THEN now_ms() + retention_ms END`
/** Somebody asked for its cancel. */
export const CANCEL_REQUESTED = 'cancel_requested_at_ms IS NOT NULL'
/** Its cancel was asked for, and there is no time, or no more time, to write what there is. */
export const CANCEL_DUE = `${CANCEL_REQUESTED} AND (partial_ms IS NULL OR expires_at_ms <= now_ms())`
/**
 * The state of a job that is found by its id, written so that no index of jobs in a state fits. Postgres would read such an
 * index whole for each job when it planned the statement while that index was empty.
 */
export const STATE = `jobs.state || ''`

/** Whether readers are to drop the output they have: the next attempt begins from the start. */
export const outputReset = `CASE WHEN has_output THEN 'true' ELSE 'false' END`

const CLAIMED = `state = 'in_progress', attempt = attempt + 1, owner = CAST(:owner AS text), chunk = 0, has_output = FALSE,
  expires_at_ms = CASE WHEN ${CANCEL_REQUESTED} THEN expires_at_ms ELSE deadline_ms END, started_at_ms = coalesce(started_at_ms, now_ms())`
/** A process that counts as dead would see the job taken away again at once, and a crash counted. */
const MAY_CLAIM = `expires_at_ms > now_ms()
  AND EXISTS (SELECT 1 FROM processes WHERE boot = CAST(:owner AS text) AND lease_until_ms > now_ms())`

/** A worker takes a job that waits and has time left: its boot id becomes the owner, and the attempt rises. */
export const CLAIM: Move = {
  name: 'claim',
  set: CLAIMED,
  where: `id = :id AND ${STATE} = 'queued' AND ${MAY_CLAIM}`,
  event: `'job.started'`,
}

/** The same of jobs of one model that wait, in turn of their tenants. */
export const CLAIM_NEXT: Move = {
  name: 'claim_next',
  givesRequest: true,
  set: CLAIMED,
  pickInTurn: MAY_CLAIM,
  event: `'job.started'`,
}

/** What every write of an owner asks for: the job still runs, in the same attempt, and no write was lost or doubled. */
export const OWNED = `id = :id AND ${STATE} = 'in_progress' AND attempt = :attempt AND owner = :owner
               AND chunk = CAST(:chunk AS int)`
/** What every write of an owner changes. */
export const WRITTEN = `chunk = chunk + 1, has_output = has_output OR CAST(:has_output AS boolean),
  progress = coalesce(:progress, progress), output_bytes = output_bytes + CAST(:bytes AS bigint)`

/** Output and progress: fenced like the end of a run, so a lost attempt adds nothing. */
export const APPEND: Move = {
  name: 'append',
  isOwners: true,
  set: WRITTEN,
  where: OWNED,
}

/** The owner ends a job with its result. */
export const COMPLETE: Move = {
  name: 'complete',
  isOwners: true,
  set: `${WRITTEN}, state = 'completed', result = :result, usage = :usage, metered = :metered, ${END}`,
  where: OWNED,
  event: `'job.completed'`,
}

/** The owner ends a job with an error. */
export const FAIL: Move = {
  name: 'fail',
  isOwners: true,
  set: `${WRITTEN}, state = 'failed', error = :error, metered = :metered, ${END}`,
  where: OWNED,
  event: `'job.failed'`,
}

/**
 * The owner gives a job back, to be tried again after a delay. A cancel that was asked for ends it here, since nobody
 * runs it then who could honour the flag.
 */
export const RETRY: Move = {
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

/** A worker that drains gives a job back: the attempt is never lowered, and no try is used up. */
export const HAND_BACK: Move = {
  name: 'hand_back',
  isOwners: true,
  set: `${WRITTEN}, published_at_ms = now_ms(),
        state = CASE WHEN ${CANCEL_DUE} THEN 'cancelled' ELSE 'queued' END, ${endWhen(CANCEL_DUE)}`,
  where: OWNED,
  event: `CASE state WHEN 'cancelled' THEN 'job.cancelled' ELSE 'job.retrying' END`,
  data: `CASE state WHEN 'cancelled' THEN NULL ELSE '{"reason":"handed_back","delay_ms":0,"output_reset":'
         || ${outputReset} || '}' END`,
}

/** The owner ends a job whose cancel was asked for, and that is to write nothing, or has nothing to write. */
export const HONOUR_CANCEL: Move = {
  name: 'honour_cancel',
  isOwners: true,
  set: `${WRITTEN}, state = 'cancelled', metered = :metered, ${END}`,
  where: `${OWNED} AND ${CANCEL_REQUESTED}`,
  event: `'job.cancelled'`,
}

/** The first cancel of a job that may write what there is. */
const WRAPS_UP = `cancel_requested_at_ms IS NULL AND partial_ms IS NOT NULL AND CAST(:how AS text) <> 'final'`
/** The same of one that no worker has, and that has done something. */
const GOES_ON = `${IDLE} AND steps > 0 AND ${WRAPS_UP}`
const ENDS = `${IDLE} AND NOT (${GOES_ON})`
const PARTIAL_UNTIL = `CASE WHEN now_ms() + partial_ms < deadline_ms THEN now_ms() + partial_ms ELSE deadline_ms END`

/**
 * A caller ends a job that waits, or asks the owner of one that runs, once. One that may write what there is gets a time for
 * that: it is queued where it waits, and the next cancel, or the end of that time, ends it.
 */
export const CANCEL: Move = {
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

/** The scheduler queues jobs whose time has come. */
export const START_DUE: Move = {
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

/** The scheduler publishes again what was published long ago and still waits: Kafka may lose everything. */
export const TAKE_UNPUBLISHED: Move = {
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

/** The scheduler ends jobs whose time to wait is over; of one that was cancelled, the time to write what there is. */
export const EXPIRE: Move = {
  name: 'expire',
  set: `state = CASE WHEN ${CANCEL_REQUESTED} THEN 'cancelled' ELSE 'expired' END, ${END}`,
  pick: { from: 'jobs', where: `${WAITING} AND expires_at_ms <= now_ms()`, order: 'expires_at_ms', lock: 'jobs' },
  event: `'job.' || state`,
}

/** How far the clock is set back before leases are looked at for it, in milliseconds: longer than a statement waits for a lock. */
export const SET_BACK_MS = 60_000
const REAPED_LOST = `NOT (${CANCEL_DUE}) AND deadline_ms > now_ms()`
const POISON = 'crashes + 1 >= CAST(:crashes_max AS int)'
/** What a cancelled job got to write what there is; nothing after the cancel that ends it. */
const PARTIAL_LEFT = `CASE WHEN jobs.expires_at_ms > jobs.cancel_requested_at_ms THEN coalesce(jobs.partial_ms, 0) ELSE 0 END`
const REQUEUED = `${REAPED_LOST} AND NOT ${POISON}`

/**
 * The scheduler ends or requeues jobs that their owners did not: the owner's lease is over, a cancel was not honoured
 * in time, or the deadline has long passed. The reaper must have held its lease for one whole lease of the owner: after
 * an outage of the store every lease looks over (docs/design.md, Leases). So does one that ends far later than
 * it can: the clock was set back, with which the reaper's time begins anew, and whoever lives has renewed since.
 *
 * The owner is joined rather than looked for in vain: when the row changed hands while this waited for its lock, Postgres
 * checks the join again against the new owner and skips the row. A lookup would run on the old snapshot, in which a new
 * owner may not exist yet. Its lease row is locked too, so that no renewal slips in between.
 */
export const REAP: Move = {
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
