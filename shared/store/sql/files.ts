import {
  BATCH_INPUT,
  type FileBounds,
  type FileQuery,
  type FileStore,
  HISTORY,
  type NewFile,
  type StoredFile,
} from '#shared/store/records.ts'
import type { Params, Row, SqlDatabase } from './sql.ts'
import type { Statement } from './statements.ts'

const COLUMNS = 'id, tenant, purpose, filename, bytes, created_at_ms, expires_at_ms'

/** The statement counts the tenant's files without a lock, so n concurrent uploads may exceed the maximum by n files. */
const CREATE: Statement = {
  name: 'file_create',
  sql: `INSERT INTO files (${COLUMNS})
        SELECT :id, :tenant, :purpose, :filename, CAST(:bytes AS bigint), now_ms(), now_ms() + CAST(:keep_ms AS bigint)
        FROM (SELECT count(*) AS files FROM files WHERE tenant = :tenant AND purpose <> '${HISTORY}') AS held
        WHERE held.files < CAST(:files_max AS bigint)
        ON CONFLICT (id) DO NOTHING RETURNING id`,
}
const FIND: Statement = {
  name: 'file_find',
  sql: `SELECT ${COLUMNS} FROM files WHERE id = :id AND tenant = :tenant AND expires_at_ms > now_ms()`,
}
const DELETE: Statement = {
  name: 'file_delete',
  sql: 'DELETE FROM files WHERE id = :id AND tenant = :tenant RETURNING id',
}
const HAS: Statement = { name: 'file_has', sql: 'SELECT id FROM files WHERE id = :id' }
const PURGE: Statement = {
  name: 'file_purge',
  sql: `DELETE FROM files WHERE id IN (
          SELECT id FROM files WHERE expires_at_ms <= now_ms() ORDER BY expires_at_ms LIMIT :limit) RETURNING id`,
}

const idsOf = (isShared: boolean) =>
  isShared ? 'SELECT json_array_elements_text(CAST(:ids AS json))' : 'SELECT value FROM json_each(:ids)'
const KEPT_UNTIL = 'now_ms() + CAST(:keep_ms AS bigint)'
const refer = (isShared: boolean): Statement => ({
  name: 'file_refer',
  sql: `UPDATE files SET refs = refs + 1,
          expires_at_ms = CASE WHEN expires_at_ms < ${KEPT_UNTIL} THEN ${KEPT_UNTIL} ELSE expires_at_ms END
        WHERE tenant = :tenant AND id IN (${idsOf(isShared)}) RETURNING id`,
})
const unrefer = (isShared: boolean): Statement => ({
  name: 'file_unrefer',
  sql: `UPDATE files SET refs = refs - 1 WHERE tenant = :tenant AND id IN (${idsOf(isShared)}) RETURNING id`,
})
const dropUnnamed = (isShared: boolean): Statement => ({
  name: 'file_drop_unnamed',
  sql: `DELETE FROM files WHERE tenant = :tenant AND id IN (${idsOf(isShared)}) AND refs <= 0 RETURNING id`,
})

export class SqlFiles implements FileStore {
  readonly #db: SqlDatabase

  constructor(db: SqlDatabase) {
    this.#db = db
  }

  async create({ keepMs, ...file }: NewFile, { filesMax }: FileBounds): Promise<boolean> {
    const params = { ...file, keep_ms: keepMs, files_max: filesMax }
    if ((await this.#db.run(CREATE, params)).length > 0) return true
    return (await this.find(file.tenant, file.id)) !== undefined
  }

  async find(tenant: string, id: string): Promise<StoredFile | undefined> {
    const [row] = await this.#db.run(FIND, { tenant, id })
    return row && fileOf(row)
  }

  async list(tenant: string, { limit, after, order, purpose }: FileQuery): Promise<StoredFile[]> {
    const params: Params = { tenant, limit: limit + 1, ...(after && { after }), ...(purpose && { purpose }) }
    return (await this.#db.run(listOf(order, Boolean(after), Boolean(purpose)), params)).map(fileOf)
  }

  async delete(tenant: string, id: string): Promise<boolean> {
    return (await this.#db.run(DELETE, { tenant, id })).length > 0
  }

  async refer(tenant: string, ids: readonly string[], keepMs: number): Promise<number> {
    const params = { tenant, ids: JSON.stringify(ids), keep_ms: keepMs }
    return (await this.#db.run(refer(this.#db.isShared), params)).length
  }

  async release(tenant: string, ids: readonly string[]): Promise<string[]> {
    const params = { tenant, ids: JSON.stringify(ids) }
    await this.#db.run(unrefer(this.#db.isShared), params)
    return (await this.#db.run(dropUnnamed(this.#db.isShared), params)).map(({ id }) => String(id))
  }

  async has(id: string): Promise<boolean> {
    return (await this.#db.run(HAS, { id })).length > 0
  }

  async purge(limit: number): Promise<string[]> {
    return (await this.#db.run(PURGE, { limit })).map(({ id }) => String(id))
  }
}

/**
 * Returns a statement that lists files. The statement reads one range of an index that ends with the id, so its cost depends only on the page size.
 */
function listOf(order: 'asc' | 'desc', hasAfter: boolean, hasPurpose: boolean): Statement {
  const conditions = [
    'tenant = :tenant',
    ...(hasPurpose ? ['purpose = :purpose'] : []),
    ...(hasAfter ? [`id ${order === 'asc' ? '>' : '<'} :after`] : []),
    `purpose <> '${BATCH_INPUT}' AND purpose <> '${HISTORY}'`,
    'expires_at_ms > now_ms()',
  ]
  return {
    name: ['file_list', order, ...(hasAfter ? ['after'] : []), ...(hasPurpose ? ['purpose'] : [])].join('_'),
    sql: `SELECT ${COLUMNS} FROM files WHERE ${conditions.join(' AND ')} ORDER BY id ${order} LIMIT :limit`,
  }
}

function fileOf(row: Row): StoredFile {
  return { ...row } as unknown as StoredFile
}
