import { describe, expect, it } from 'vitest'
import { loadMigrations } from '#shared/store/sql/migrations.ts'

/**
 * The first 16 characters of each migration's hash. The service refuses to use a database if the file of an applied migration has changed,
 * even in a comment. Add a line for a new migration; never change a line of a released migration.
 */
const HASHES = {
  postgres: { '001-tables.sql': 'e536ace8640405c9' },
  sqlite: { '001-tables.sql': 'fae068ebec0663a2' },
}

describe.each(['postgres', 'sqlite'] as const)('the migrations of %s', (dialect) => {
  it('are unchanged since their release, because databases have applied them', () => {
    const hashes = loadMigrations(dialect).map(({ name, hash }) => [name, hash.slice(0, 16)])
    expect(Object.fromEntries(hashes)).toEqual(HASHES[dialect])
  })
})
