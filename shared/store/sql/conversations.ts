import type { ConversationChange, ConversationStore, StoredConversation } from '#shared/store/records.ts'
import type { Row, SqlDatabase } from './sql.ts'
import type { Statement } from './statements.ts'

const COLUMNS = 'id, tenant, metadata, items, job_id, pending, version, created_at_ms'

/** The statement counts the tenant's conversations without a lock, so n concurrent calls may exceed the maximum by n conversations. */
const CREATE: Statement = {
  name: 'conversation_create',
  sql: `INSERT INTO conversations (${COLUMNS}, expires_at_ms, chars)
        SELECT :id, :tenant, :metadata, :items, NULL, '[]', 1, now_ms(), now_ms() + CAST(:keep_ms AS bigint),
          CAST(:chars AS bigint)
        FROM (SELECT count(*) AS held FROM conversations WHERE tenant = :tenant) AS all_of_them
        WHERE all_of_them.held < CAST(:most AS bigint) RETURNING id`,
}
const FIND: Statement = {
  name: 'conversation_find',
  sql: `SELECT ${COLUMNS} FROM conversations WHERE id = :id AND tenant = :tenant AND expires_at_ms > now_ms()`,
}
const CHANGE: Statement = {
  name: 'conversation_change',
  sql: `UPDATE conversations SET metadata = :metadata, items = :items, job_id = :job_id, pending = :pending,
          chars = CAST(:chars AS bigint), version = version + 1, expires_at_ms = now_ms() + CAST(:keep_ms AS bigint)
        WHERE id = :id AND tenant = :tenant AND version = CAST(:version AS bigint) RETURNING id`,
}
const DELETE: Statement = {
  name: 'conversation_delete',
  sql: 'DELETE FROM conversations WHERE id = :id AND tenant = :tenant RETURNING id',
}
const PURGE: Statement = {
  name: 'conversation_purge',
  sql: `DELETE FROM conversations WHERE id IN (
          SELECT id FROM conversations WHERE expires_at_ms <= now_ms() ORDER BY expires_at_ms LIMIT :limit) RETURNING id`,
}

export class SqlConversations implements ConversationStore {
  readonly #db: SqlDatabase

  constructor(db: SqlDatabase) {
    this.#db = db
  }

  async create(
    { id, tenant, metadata, items }: Parameters<ConversationStore['create']>[0],
    { keepMs, most }: Parameters<ConversationStore['create']>[1],
  ): Promise<boolean> {
    const texts = { metadata: JSON.stringify(metadata), items: JSON.stringify(items) }
    const params = { id, tenant, ...texts, chars: Buffer.byteLength(texts.items), keep_ms: keepMs, most }
    return (await this.#db.run(CREATE, params)).length > 0
  }

  async find(tenant: string, id: string): Promise<StoredConversation | undefined> {
    const [row] = await this.#db.run(FIND, { tenant, id })
    return row && conversationOf(row)
  }

  async change(read: StoredConversation, change: ConversationChange, keepMs: number): Promise<boolean> {
    const { id, tenant, version, metadata, items, job_id, pending } = { ...read, ...change }
    const texts = {
      metadata: JSON.stringify(metadata),
      items: JSON.stringify(items),
      pending: JSON.stringify(pending),
    }
    const chars = Buffer.byteLength(texts.items) + Buffer.byteLength(texts.pending)
    return (await this.#db.run(CHANGE, { id, tenant, version, job_id, ...texts, chars, keep_ms: keepMs })).length > 0
  }

  async delete(tenant: string, id: string): Promise<boolean> {
    return (await this.#db.run(DELETE, { tenant, id })).length > 0
  }

  async purge(limit: number): Promise<number> {
    return (await this.#db.run(PURGE, { limit })).length
  }
}

function conversationOf({ metadata, items, pending, version, created_at_ms, ...row }: Row): StoredConversation {
  const texts = { metadata, items, pending }
  const read = Object.entries(texts).map(([name, text]) => [name, JSON.parse(String(text))] as const)
  const numbers = { version: Number(version), created_at_ms: Number(created_at_ms) }
  return { ...row, ...Object.fromEntries(read), ...numbers } as StoredConversation
}
