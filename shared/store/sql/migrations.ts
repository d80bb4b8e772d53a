import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/** One change of the schema: a file of plain SQL that is run once and never edited afterwards. */
export interface Migration {
  readonly name: string
  readonly sql: string
  readonly hash: string
}

export type Dialect = 'postgres' | 'sqlite'

/** Last release with an incompatible schema. Databases of that release cannot be upgraded. */
const REFUSED_VERSION = '0.2.0'

const EMPTY_STORE: Readonly<Record<Dialect, string>> = {
  postgres: 'set DATABASE_URL to an empty database',
  sqlite: 'move store.db out of DATA_DIR',
}

/** Error for a database whose schema this version cannot use. The database is unchanged. */
export class SchemaError extends Error {
  readonly remediation: string

  constructor(problem: string, remediation: string) {
    super(`${problem}. ${remediation}`)
    this.name = 'SchemaError'
    this.remediation = remediation
  }
}

/** Loads the migrations of a dialect, in the order of their names. The first migration creates the schema. */
export function loadMigrations(dialect: Dialect): Migration[] {
  const directory = join(import.meta.dirname, 'migrations', dialect)
  const names = readdirSync(directory).filter((name) => name.endsWith('.sql'))
  return names.toSorted().map((name) => {
    const sql = readFileSync(join(directory, name), 'utf8')
    return { name, sql, hash: createHash('sha256').update(sql).digest('hex') }
  })
}

/**
 * Returns the migrations that a database lacks. If a database has migrations that are unknown here, then they are ignored, because older versions may
 * also start during a rolling upgrade.
 *
 * @param applied Name and hash of each applied migration.
 * @throws SchemaError if the database has the schema of {@link REFUSED_VERSION} or older, or if the content of an applied migration has changed
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
