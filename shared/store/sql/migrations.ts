import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/** One step of the schema: a file of plain SQL that is run once and never changed afterwards. */
export interface Migration {
  readonly name: string
  readonly sql: string
  readonly hash: string
}

export function loadMigrations(dialect: 'postgres' | 'sqlite'): Migration[] {
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
 * @throws Error if an applied one has another content: the schema is not the expected one
 */
export function missingMigrations(migrations: readonly Migration[], applied: ReadonlyMap<string, string>): Migration[] {
  for (const { name, hash } of migrations) {
    if ((applied.get(name) ?? hash) === hash) continue
    throw new Error(
      `Migration ${name} differs from the one applied to this database. Restore the file, or add a new migration instead.`,
    )
  }
  return migrations.filter(({ name }) => !applied.has(name))
}
