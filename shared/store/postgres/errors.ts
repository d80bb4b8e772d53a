import { ServiceError } from '#shared/lib/error.ts'

/**
 * Classifies every failure of Postgres, of a pooler in front of Postgres, or of the network in between. The class decides three things:
 * 1. The effect: either the database is unavailable, so that each call is rejected at once until a probe succeeds, or only this call failed.
 * 2. Whether a starting process waits for recovery. Waiting does not correct a wrong password, so in this case the process exits after some seconds.
 * 3. The message for the operator: the problem and its remedy. Callers get a sentence without internals.
 *
 * A failure without a class is a defect of Sluice or a value that Postgres refuses, such as a violated constraint. Only such a failure may end a job.
 * PgBouncer before 1.20 gives all of its own failures SQLSTATE 08P01, so message texts are compared before SQLSTATEs.
 */

const RETRY_AFTER_MS = 2_000
/** Retry-After for a full disk, in ms. Within this time, an operator or the purge may have freed space. */
const FULL_RETRY_MS = 60_000

const SQLSTATE = /^[0-9A-Z]{5}$/

type Effect = 'gone' | 'failed' | 'full'

interface FailureClass {
  readonly name: string
  readonly effect: Effect
  readonly isPermanent?: boolean
  /** SQLSTATEs (Postgres, appendix A), or Node's codes for errors of the network and of TLS. */
  readonly states?: RegExp
  readonly words?: RegExp
  readonly problem: string
  readonly remediation: string
}

const CHECK_ADDRESS = 'Start Postgres, or correct the host and port in DATABASE_URL.'

/** Failure classes in order. The first match applies. */
const CLASSES: readonly FailureClass[] = [
  {
    name: 'startup_parameter',
    effect: 'gone',
    isPermanent: true,
    words: /unsupported startup parameter/i,
    problem: 'The pooler in front of Postgres rejects a startup parameter',
    remediation:
      'Remove that parameter from the query of DATABASE_URL; a search_path can be set with ALTER ROLE … SET search_path.',
  },
  {
    name: 'too_many_connections',
    effect: 'failed',
    states: /^53300$/,
    words: /too many (clients|connections)|no more connections allowed|remaining connection slots/i,
    problem: 'Postgres accepts no more connections',
    remediation:
      'Lower DATABASE_CONNECTIONS, raise max_connections of Postgres, or put a pooler such as PgBouncer in front of it.',
  },
  {
    name: 'no_encryption',
    effect: 'gone',
    isPermanent: true,
    words: /no encryption|SSL off|does not support SSL|SSL required/i,
    problem: 'Postgres and DATABASE_URL disagree on TLS',
    remediation:
      'Add sslmode=require to the query of DATABASE_URL if the server requires TLS, or sslmode=disable if it has none.',
  },
  {
    name: 'access',
    effect: 'gone',
    isPermanent: true,
    words: /no pg_hba\.conf entry|pg_hba\.conf rejects/i,
    problem: 'Postgres rejects this host, user or database',
    remediation: 'Add a line for this host, user and database to pg_hba.conf of the server, and reload the server.',
  },
  {
    name: 'password',
    effect: 'gone',
    isPermanent: true,
    states: /^28/,
    words: /password authentication failed|SASL|no such user|client password must be|authentication failed/i,
    problem: 'Postgres rejects the user or the password',
    remediation:
      'Correct the user and password in DATABASE_URL; characters such as @, : and / are percent-encoded there.',
  },
  {
    name: 'no_database',
    effect: 'gone',
    isPermanent: true,
    states: /^3D000$/,
    words: /no such database/i,
    problem: 'The database does not exist',
    remediation: 'Create it (CREATE DATABASE …), or correct the name at the end of DATABASE_URL.',
  },
  {
    name: 'tls',
    effect: 'gone',
    isPermanent: true,
    states: /^(ERR_TLS|ERR_SSL|ERR_OSSL|CERT_|DEPTH_ZERO|SELF_SIGNED|UNABLE_TO_|EPROTO|HOSTNAME_MISMATCH)/,
    words: /certificate|SSL connection/i,
    problem: 'The TLS connection to Postgres failed',
    remediation:
      'Check sslmode and sslrootcert in the query of DATABASE_URL, and the host name in the certificate of the server.',
  },
  {
    name: 'dns',
    effect: 'gone',
    states: /^(ENOTFOUND|EAI_)/,
    problem: 'The host name of Postgres cannot be resolved',
    remediation: 'Correct the host in DATABASE_URL, or the DNS of this machine.',
  },
  {
    name: 'not_listening',
    effect: 'gone',
    states: /^ECONNREFUSED$/,
    problem: 'No server listens at the address of Postgres',
    remediation: CHECK_ADDRESS,
  },
  {
    name: 'read_only',
    effect: 'gone',
    states: /^25006$/,
    problem: 'Postgres is read-only: a standby, or default_transaction_read_only is on',
    remediation: 'Set DATABASE_URL to the primary.',
  },
  {
    name: 'starting',
    effect: 'gone',
    states: /^57P/,
    problem: 'Postgres is starting or stopping',
    remediation: 'Wait until Postgres is ready. If the error persists, check the Postgres log.',
  },
  {
    name: 'disk_full',
    effect: 'full',
    states: /^53100$/,
    problem: 'The disk of Postgres is full',
    remediation: 'Free space on the disk of Postgres, or give the database a larger disk. No restart is needed.',
  },
  {
    name: 'statements_lost',
    effect: 'failed',
    states: /^(26000|42P05)$/,
    problem: 'A pooler in front of Postgres moved this connection between servers',
    remediation: 'No action is needed: prepared statements are now off for this address.',
  },
  {
    name: 'permission',
    effect: 'failed',
    isPermanent: true,
    states: /^42501$/,
    problem: 'The user of DATABASE_URL lacks a permission',
    remediation:
      'Make that user the owner of the database, or GRANT CREATE, USAGE ON SCHEMA and ALL ON ALL TABLES IN SCHEMA to it.',
  },
  {
    name: 'schema',
    effect: 'failed',
    isPermanent: true,
    states: /^(3F000|42P01|42703|42704|42883|42P07|42710)$/,
    problem: 'The database schema does not match this version',
    remediation:
      'Check the search_path in DATABASE_URL and that of its database user. Then restart one process, which updates the schema.',
  },
  {
    name: 'timeout',
    effect: 'gone',
    states: /^(ETIMEDOUT|EHOST|ENET)/,
    words: /^(timeout expired|Query read timeout|Connection terminated due to connection timeout)|query_wait_timeout/,
    problem: 'Postgres does not respond in time',
    remediation: 'Check the database server, its host and port, and firewalls in between.',
  },
  {
    name: 'disconnected',
    effect: 'gone',
    states: /^(08|25P03|ECONN|EPIPE)/,
    words: /^(Connection terminated|Client (has|was) )/,
    problem: 'The connection to Postgres broke',
    remediation: 'Check the log of Postgres, and of the pooler if there is one.',
  },
  {
    name: 'slow',
    effect: 'failed',
    states: /^(57014|55P03|55006|40001|40P01)$/,
    words: /^timeout exceeded when trying to connect/,
    problem: 'Postgres is slow, or a lock is held for long',
    remediation: "Look for locks: SELECT * FROM pg_stat_activity WHERE wait_event_type = 'Lock'.",
  },
  {
    name: 'server',
    effect: 'failed',
    // All SQLSTATE classes except those of rejected values (20 to 23, 44, 54, P0) and of invalid statements (42).
    states: /^(0|24|25|26|2B|2D|2F|34|38|39|3B|40|53|55|57|58|72|F0|HV|XX)[0-9A-Z]{3,4}$/,
    problem: 'Postgres reports an internal error',
    remediation: 'Check the log of Postgres; SQLSTATE is explained in appendix A of its manual.',
  },
]

/** A failure of Postgres for operators, with its remedy. This error is the `cause` of the {@link ServiceError} that callers receive. */
export class PostgresProblem extends Error {
  readonly code: string | undefined
  readonly remediation: string
  /** True if retries cannot succeed. A starting process then exits instead of waiting. */
  readonly isPermanent: boolean
  readonly facts: { readonly failure: string }

  constructor(found: FailureClass, error: unknown) {
    const { code, message } = reasonOf(error)
    super(`${found.problem}: ${message}${SQLSTATE.test(code) ? ` (SQLSTATE ${code})` : ''}`)
    this.name = 'PostgresProblem'
    this.code = code === '' ? undefined : code
    this.remediation = found.remediation
    this.isPermanent = found.isPermanent ?? false
    this.facts = { failure: found.name }
  }
}

/** Classifies an error of the Postgres client. Returns the effect and the error for the caller. `effect` is undefined if no class matches. */
export function translate(error: unknown): { effect: Effect | undefined; name: string; error: unknown } {
  const { code, message } = reasonOf(error)
  // Phrases are searched only in messages without quoted values. Otherwise a value that a caller sent could contain one of the phrases.
  const hasOwnWords = !SQLSTATE.test(code) || /^(08|28|53|57)/.test(code)
  const found =
    (hasOwnWords ? CLASSES.find(({ words }) => words?.test(message)) : undefined) ??
    CLASSES.find(({ states }) => code !== '' && states?.test(code))
  if (!found) return { effect: undefined, name: '', error }
  const cause = new PostgresProblem(found, error)
  const translated = found.effect === 'gone' ? unreachable(cause) : found.effect === 'full' ? full(cause) : busy(cause)
  return { effect: found.effect, name: found.name, error: translated }
}

/**
 * Error for calls while the database is unreachable.
 *
 * @param isUndone True if the call was not sent, so that nothing has changed
 */
export function unreachable(cause?: unknown, isUndone = false): ServiceError {
  const message = 'The job store cannot be reached now.'
  return new ServiceError('overloaded', message, {
    cause,
    retryAfterMs: RETRY_AFTER_MS,
    isUndone,
    isInfrastructure: true,
    reason: 'store',
  })
}

/** Error of one call that the database rolled back or never received. */
export function busy(cause?: unknown): ServiceError {
  const isSlow = cause === undefined || (cause as Partial<PostgresProblem>).facts?.failure === 'slow'
  const message = isSlow ? 'The job store is overloaded.' : 'The job store cannot process the request now.'
  const more = { retryAfterMs: RETRY_AFTER_MS, isUndone: true, isInfrastructure: true, reason: 'store' } as const
  return new ServiceError('overloaded', message, { cause, ...more })
}

function full(cause: unknown): ServiceError {
  const message = 'The disk of the job store is full.'
  const more = { retryAfterMs: FULL_RETRY_MS, isUndone: true, isInfrastructure: true, reason: 'disk_full' } as const
  return new ServiceError('overloaded', message, { cause, ...more })
}

/** If several addresses failed, then the outer message is empty and the inner errors have the reason. */
function reasonOf(error: unknown): { code: string; message: string } {
  if (error instanceof AggregateError && error.errors.length > 0) return reasonOf(error.errors[0])
  const { code, message } = error as { code?: unknown; message?: unknown }
  return { code: typeof code === 'string' ? code : '', message: typeof message === 'string' ? message : String(error) }
}
