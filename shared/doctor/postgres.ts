import { SHARE_REMEDIATION } from '#shared/blobs/fleet-blobs.ts'
import type { Config } from '#shared/config/config.ts'
import { findBlobsId, inspectPostgres, type PostgresFacts } from '#shared/ports/inspect.ts'
import { missingMigrations } from '#shared/store/sql/migrations.ts'
import { type Check, type Finding, failed, ok, skipped, warned } from './check.ts'

const VERSION_MIN = 13

/** Checks Postgres, if DATABASE_URL is set: the version, write access and the database schema. */
export const postgresCheck: Check = {
  name: 'postgres',
  remediation: 'Start Postgres, or correct the host, user or password in DATABASE_URL.',
  async run(config) {
    const { databaseUrl, kafka } = config
    if (databaseUrl === undefined) return [withoutPostgres(kafka !== undefined)]
    const facts = await inspectPostgres(databaseUrl)
    return [...findingsOf(facts), ...(await sharedBlobsFindings(facts, config))]
  },
}

function withoutPostgres(hasKafka: boolean): Finding {
  const message = 'not needed: without DATABASE_URL durable jobs and keys are stored in DATA_DIR'
  if (!hasKafka) return skipped('postgres', message)
  const remediation = 'With roles in separate processes, durable jobs need Postgres: set DATABASE_URL.'
  return warned('postgres', 'DATABASE_URL is not set, but KAFKA_BROKERS is', remediation)
}

function findingsOf(facts: PostgresFacts): Finding[] {
  const { version, major, is_standby, is_pooled, synchronous_commit } = facts
  const findings: Finding[] = []
  if (major < VERSION_MIN) {
    findings.push(failed('postgres', `${version} is too old`, `Upgrade to Postgres ${VERSION_MIN} or later.`))
  }
  if (is_standby) findings.push(failed('postgres', 'the server is a standby', 'Set DATABASE_URL to the primary.'))
  if (synchronous_commit === 'off') {
    const remediation =
      "Run ALTER SYSTEM SET synchronous_commit = 'on', then SELECT pg_reload_conf(). Otherwise, a crash of the server loses accepted jobs."
    findings.push(warned('postgres', 'synchronous_commit is off', remediation))
  }
  const through = is_pooled
    ? [ok('postgres', 'connected through a pooler such as PgBouncer, so prepared statements are off')]
    : []
  return [...findings, ...through, schemaFinding(facts)]
}

function schemaFinding({ version, can_create, applied }: PostgresFacts): Finding {
  const missing = missingMigrations('postgres', applied)
  if (missing.length === 0) return ok('postgres', `${version}, schema up to date`)
  const names = missing.map(({ name }) => name).join(', ')
  if (can_create) return ok('postgres', `${version}, migrations at the next start: ${names}`)
  const remediation =
    'Run GRANT CREATE ON SCHEMA public TO USER, with the user of DATABASE_URL. Or append ?options=-csearch_path%3DSCHEMA to DATABASE_URL to use another schema.'
  return failed('postgres', `${version}, the schema lacks ${names}, and this user may not create tables`, remediation)
}

/** Checks that this process uses the blob store of the other processes. If no process has registered a blob store, then there is no finding. */
async function sharedBlobsFindings({ blobs_id }: PostgresFacts, config: Config): Promise<Finding[]> {
  if (blobs_id === undefined) return []
  const { blobUrl = config.blobDir } = config
  if ((await findBlobsId(config)) === blobs_id)
    return [ok('blobs', `${blobUrl} is the blob store of the running processes`)]
  const message = `${blobUrl} is not the blob store of the running processes: bodies over 64 KiB and files would be missing`
  return [failed('blobs', message, SHARE_REMEDIATION)]
}
