import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/** One step of the schema: a file of plain SQL that is run once and never changed afterwards. */
export interface Migration {
  readonly name: string
  readonly sql: string
  readonly hash: string
}

export type Dialect = 'postgres' | 'sqlite'

/** The last release whose schema had other migrations. Databases of that release cannot be upgraded. */
const REFUSED_VERSION = '0.2.0'

const EMPTY_STORE: Readonly<Record<Dialect, string>> = {
  postgres: 'set DATABASE_URL to an empty database',
  sqlite: 'move store.db out of DATA_DIR',
}

/** A schema that this version cannot use. The database is unchanged. */
export class SchemaError extends Error {
  readonly remediation: string

  constructor(problem: string, remediation: string) {
    super(`${problem}. ${remediation}`)
    this.name = 'SchemaError'
    this.remediation = remediation
  }
}

/** The migrations of a dialect in the order of their names. The first one creates the schema. */
export function loadMigrations(dialect: Dialect): Migration[] {
  const directory = join(import.meta.dirname, 'migrations', dialect)
  const names = readdirSync(directory).filter((name) => name.endsWith('.sql'))
  return names.toSorted().map((name) => {
    const sql = readFileSync(join(directory, name), 'utf8')
    return { name, sql, hash: createHash('sha256').update(sql).digest('hex') }
  })
}

/**
 * Migrations that a database lacks. A database may have later ones: during a rolling upgrade, older versions start too.
 *
 * @param applied Name and hash of the applied ones.
 * @throws SchemaError if the database has the schema of {@link REFUSED_VERSION} or older, or if an applied migration has another content
 */
export function missingMigrations(
  dialect: Dialect,
  applied: ReadonlyMap<string, string>,
  all: readonly Migration[] = loadMigrations(dialect),
): Migration[] {
  const last = [...applied.keys()].toSorted().at(-1)
  if (last !== undefined && !applied.has(all[0]?.name ?? ''))
    throw new SchemaError(
      `The job store has the schema of version ${REFUSED_VERSION} or older (last migration ${last}); nothing was changed`,
      `Export what you need with that version, then ${EMPTY_STORE[dialect]}.`,
    )
  for (const { name, hash } of all) {
    if ((applied.get(name) ?? hash) === hash) continue
    throw new SchemaError(
      `Migration ${name} differs from the one applied to this database; nothing was changed`,
      'Restore the file, or add a new migration instead.',
    )
  }
  return all.filter(({ name }) => !applied.has(name))
}
