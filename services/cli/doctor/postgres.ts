import { PostgresConnection } from '#shared/store/postgres/connection.ts'
import { loadMigrations, missingMigrations } from '#shared/store/sql/migrations.ts'
import { type Check, type Finding, failed, ok, skipped, warned } from './check.ts'

const VERSION_MIN = 13
const STATEMENT_TIMEOUT_MS = 5_000

/** What is asked of the server in one go. */
interface Facts {
  readonly version: string
  readonly major: number
  readonly is_standby: boolean
  readonly synchronous_commit: string
  readonly has_migrations: boolean
  readonly can_create: boolean
}

const FACTS = `SELECT current_setting('server_version') AS version,
  current_setting('server_version_num')::int / 10000 AS major,
  pg_is_in_recovery() AS is_standby,
  current_setting('synchronous_commit') AS synchronous_commit,
  to_regclass('migrations') IS NOT NULL AS has_migrations,
  coalesce(has_schema_privilege(current_schema(), 'CREATE'), FALSE) AS can_create`

/** Postgres, where DATABASE_URL names one: there, new enough, writable, with the schema of this version. */
export const postgresCheck: Check = {
  name: 'postgres',
  fix: 'Start Postgres, or mend the host, user or password in DATABASE_URL.',
  async run({ databaseUrl, kafka }) {
    if (databaseUrl === undefined) return [withoutPostgres(kafka !== undefined)]
    const connection = new PostgresConnection({
      url: databaseUrl,
      connectionsMax: 1,
      statementTimeoutMs: STATEMENT_TIMEOUT_MS,
      // The call that meets the problem throws it.
      onProblem: () => undefined,
    })
    try {
      const { facts, applied } = await connection.transaction(async (client) => {
        const facts: Facts = (await client.query(FACTS)).rows[0]
        const { rows } = facts.has_migrations ? await client.query('SELECT name, hash FROM migrations') : { rows: [] }
        return { facts, applied: new Map<string, string>(rows.map(({ name, hash }) => [name, hash])) }
      })
      return findingsOf(facts, applied)
    } finally {
      await connection.close()
    }
  },
}

function withoutPostgres(hasKafka: boolean): Finding {
  const message = 'not needed: without DATABASE_URL durable jobs and keys are kept in DATA_DIR'
  if (!hasKafka) return skipped('postgres', message)
  const fix = 'Roles in processes of their own keep durable jobs in Postgres only: set DATABASE_URL for a fleet.'
  return warned('postgres', 'DATABASE_URL is not set, but KAFKA_BROKERS is', fix)
}

function findingsOf(facts: Facts, applied: ReadonlyMap<string, string>): Finding[] {
  const { version, major, is_standby, synchronous_commit } = facts
  const findings: Finding[] = []
  if (major < VERSION_MIN) {
    findings.push(failed('postgres', `${version} is too old`, `Upgrade to Postgres ${VERSION_MIN} or later.`))
  }
  if (is_standby) findings.push(failed('postgres', 'it is a standby', 'Let DATABASE_URL lead to the primary.'))
  if (synchronous_commit === 'off') {
    const fix = "ALTER SYSTEM SET synchronous_commit = 'on', or accepted jobs are lost in a crash of the server."
    findings.push(warned('postgres', 'synchronous_commit is off', fix))
  }
  return [...findings, schemaFinding(facts, applied)]
}

function schemaFinding({ version, can_create }: Facts, applied: ReadonlyMap<string, string>): Finding {
  const all = loadMigrations('postgres')
  const missing = missingMigrations(all, applied)
  if (missing.length === 0) return ok('postgres', `${version}, schema up to date (${all.length} migrations)`)
  const names = missing.map(({ name }) => name).join(', ')
  if (can_create) return ok('postgres', `${version}, run at the next start: ${names}`)
  const fix = 'GRANT CREATE ON SCHEMA public TO the user of DATABASE_URL, or name a schema with ?options=-csearch_path.'
  return failed('postgres', `${version}, the schema lacks ${names}, and this user may make no tables`, fix)
}
