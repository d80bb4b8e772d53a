import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync, type StatementSync } from 'node:sqlite'
import { makeDirectory, makePrivateFile } from '#shared/config/directory.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { SNIPPET_CHARS_MAX, type Snapshot } from '#shared/search/search.ts'
import { passagesOf } from '#shared/search/text/passages.ts'
import { prefixOf } from '#shared/search/text/query-terms.ts'
import { indexTermsOf, subjectOf, termsOf } from '#shared/search/text/terms.ts'

export const PASSAGES_MAX = 50_000
/** Maximum passages that a search ranks. The ranked passages are then grouped by document. */
const PASSAGES_RANKED_MAX = 200
/** Time in ms for which the text of a removed or changed document can still be read. A job runs for less than 8 days, so it can read all its hits. */
const UNREFERENCED_TTL_MS = 8 * 24 * 3_600_000
/** Age in ms at which an incompletely added source is deleted, because a crash must have left it. Adding one file takes much less time. */
const INCOMPLETE_TTL_MS = 3_600_000
const BUSY_TIMEOUT_MS = 5_000
const PASSAGES_PER_TRANSACTION = 8
/** Version of the tables below. An index of another version is deleted and built again. */
const VERSION = 8

const TABLES = `
  CREATE TABLE files (path TEXT PRIMARY KEY, bytes INTEGER NOT NULL, modified_ms INTEGER NOT NULL, problem TEXT) STRICT;
  CREATE TABLE sources (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL, url TEXT NOT NULL, sha256 TEXT NOT NULL, title TEXT NOT NULL,
    text TEXT NOT NULL, blocks TEXT NOT NULL, date TEXT NOT NULL, is_current INTEGER NOT NULL, left_ms INTEGER NOT NULL
  ) STRICT;
  CREATE INDEX sources_path ON sources (path, is_current);
  CREATE INDEX sources_sha256 ON sources (sha256, url);
  CREATE TABLE passage_places (id INTEGER PRIMARY KEY, source INTEGER NOT NULL, snippet TEXT NOT NULL) STRICT;
  CREATE INDEX passage_places_source ON passage_places (source);
  CREATE VIRTUAL TABLE passages USING fts5 (title, heading, body, tokenize = "unicode61 remove_diacritics 0 categories 'L* M* N* Co'");
  PRAGMA user_version = ${VERSION};`

const SEARCH = `
  SELECT s.id AS id, s.url AS url, s.title AS title, s.sha256 AS sha256, s.date AS date,
    p.snippet AS snippet
  FROM passages JOIN passage_places p ON p.id = passages.rowid JOIN sources s ON s.id = p.source
  WHERE passages MATCH ? AND s.is_current = 1
  ORDER BY bm25(passages, 4.0, 2.0, 1.0), s.url, passages.rowid LIMIT ${PASSAGES_RANKED_MAX}`

const UNREFERENCED_PASSAGES = `
  SELECT p.id AS id FROM sources s JOIN passage_places p ON p.source = s.id WHERE s.is_current = 0 LIMIT 50`

export interface IndexedFile {
  readonly path: string
  readonly bytes: number
  readonly modifiedMs: number
}

export interface FoundSource {
  readonly url: string
  readonly title: string
  readonly sha256: string
  readonly date: string
  readonly snippet: string
}

/**
 * The full-text index of a corpus in SQLite (FTS5). All contents come from the files, so a broken index is deleted and built again. A text that was
 * removed from its file stays readable by its hash for 8 days. A research run can therefore read all its hits until it ends.
 */
export class CorpusIndex {
  readonly #db: DatabaseSync
  readonly #statements = new Map<string, StatementSync>()

  constructor(directory: string) {
    makeDirectory(directory)
    const path = join(directory, 'corpus.db')
    this.#db = openCurrent(path) ?? openAnew(path)
  }

  get isOpen(): boolean {
    return this.#db.isOpen
  }

  get size(): number {
    return Number(this.#all('SELECT count(*) AS count FROM passage_places')[0]?.count ?? 0)
  }

  files(): IndexedFile[] {
    const rows = this.#all('SELECT path, bytes, modified_ms FROM files')
    return rows.map((row) => ({
      path: String(row.path),
      bytes: Number(row.bytes),
      modifiedMs: Number(row.modified_ms),
    }))
  }

  problems(): string[] {
    const rows = this.#all('SELECT path, problem FROM files WHERE problem IS NOT NULL ORDER BY path LIMIT 20')
    return rows.map(({ path, problem }) => `${path}: ${problem}`)
  }

  /** Replaces the sources of a file. Yields to the event loop. Searches find the old sources until all new sources are added. */
  *replace(file: IndexedFile, sources: readonly Snapshot[], problem: string | null): Generator<void> {
    const { path, bytes, modifiedMs } = file
    const added: number[] = []
    for (const source of sources) {
      const id = this.#addSource(path, source)
      added.push(id)
      yield* this.#addPassages(id, source)
    }
    this.#together(() => {
      this.#all('UPDATE sources SET is_current = 0, left_ms = ? WHERE path = ? AND is_current = 1', Date.now(), path)
      for (const id of added) this.#all('UPDATE sources SET is_current = 1 WHERE id = ?', id)
      this.#all('INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)', path, bytes, modifiedMs, problem)
    })
    yield* this.sweep()
  }

  /** Removes a file. The texts of the file stay readable by their hashes for 8 days. */
  *remove(path: string): Generator<void> {
    this.#together(() => {
      this.#all('UPDATE sources SET is_current = 0, left_ms = ? WHERE path = ? AND is_current = 1', Date.now(), path)
      this.#all('DELETE FROM files WHERE path = ?', path)
    })
    yield* this.sweep()
  }

  /** Deletes the passages of removed sources, and the texts of removed sources after 8 days. */
  *sweep(): Generator<void> {
    // `is_current = 2` marks a source that is being added. After INCOMPLETE_TTL_MS, a crash must have interrupted this, so the source is removed.
    this.#all('UPDATE sources SET is_current = 0 WHERE is_current = 2 AND left_ms < ?', Date.now() - INCOMPLETE_TTL_MS)
    for (;;) {
      const rows = this.#all(UNREFERENCED_PASSAGES)
      if (rows.length === 0) break
      this.#together(() => {
        for (const { id } of rows) {
          this.#all('DELETE FROM passages WHERE rowid = ?', Number(id))
          this.#all('DELETE FROM passage_places WHERE id = ?', Number(id))
        }
      })
      yield
    }
    this.#all('DELETE FROM sources WHERE is_current = 0 AND left_ms < ?', Date.now() - UNREFERENCED_TTL_MS)
  }

  search(terms: readonly string[], limit: number): FoundSource[] {
    const best = new Map<number, FoundSource>()
    for (const row of this.#match(SEARCH, terms)) {
      const { url, title, sha256, date, snippet } = row
      const source = [url, title, sha256, date, snippet].map(String) as [string, string, string, string, string]
      if (!best.has(Number(row.id))) best.set(Number(row.id), found(...source))
      if (best.size >= limit) break
    }
    return [...best.values()]
  }

  /** Returns the number of passages that contain a form of the word. For a prefix term such as `kilome*`, all words with this prefix count. */
  count(word: string): number {
    const terms = prefixOf(word) === undefined ? [[...termsOf(word)].map(({ term }) => term).join(' ')] : [word]
    const [row] = this.#match('SELECT count(*) AS count FROM passages WHERE passages MATCH ?', terms)
    return Number(row?.count ?? 0)
  }

  find(url: string, sha256: string | undefined): Snapshot | undefined {
    const [row] =
      sha256 === undefined
        ? this.#all('SELECT * FROM sources WHERE url = ? AND is_current = 1', url)
        : this.#all('SELECT * FROM sources WHERE sha256 = ? AND url = ? LIMIT 1', sha256, url)
    if (!row) return undefined
    const blocks = JSON.parse(String(row.blocks)) as Snapshot['blocks']
    const { title, text, date } = row
    return { url, title: String(title), text: String(text), blocks, sha256: String(row.sha256), date: String(date) }
  }

  close(): void {
    this.#statements.clear()
    if (this.#db.isOpen) this.#db.close()
  }

  #addSource(path: string, { url, sha256, title, text, blocks, date }: Snapshot): number {
    const insert = `INSERT INTO sources (path, url, sha256, title, text, blocks, date, is_current, left_ms)
      VALUES (?, ?, ?, ?, ?, ?, ?, 2, ?) RETURNING id`
    const [row] = this.#all(insert, path, url, sha256, title, text, JSON.stringify(blocks), date ?? '', Date.now())
    return Number(row?.id)
  }

  *#addPassages(source: number, snapshot: Snapshot): Generator<void> {
    const subject = indexed(subjectOf(snapshot))
    let open: { snippet: string; columns: string[] }[] = []
    for (const { heading, context, start, end } of passagesOf(snapshot)) {
      const body = snapshot.text.slice(start, end)
      const snippet = body.slice(0, SNIPPET_CHARS_MAX).toWellFormed()
      open.push({ snippet, columns: [subject, indexed(`${heading}\n${context}`), indexed(body)] })
      yield
      if (open.length < PASSAGES_PER_TRANSACTION) continue
      this.#insert(source, open)
      open = []
      yield
    }
    if (open.length > 0) this.#insert(source, open)
  }

  #insert(source: number, passages: readonly { snippet: string; columns: readonly string[] }[]): void {
    this.#together(() => {
      for (const { snippet, columns } of passages) {
        const place = 'INSERT INTO passage_places (source, snippet) VALUES (?, ?) RETURNING id'
        const [row] = this.#all(place, source, snippet)
        const insert = 'INSERT INTO passages (rowid, title, heading, body) VALUES (?, ?, ?, ?)'
        this.#all(insert, Number(row?.id), ...columns)
      }
    })
  }

  /** Runs a query for passages with any of the terms. The terms are quoted, because FTS5 would otherwise read words such as `NOT` as operators. */
  #match(sql: string, terms: readonly string[]): Record<string, unknown>[] {
    const some = terms.filter((term) => term !== '')
    const query = some.map((term) => `"${(prefixOf(term) ?? term).replaceAll('"', '')}"${prefixOf(term) ? ' *' : ''}`)
    return query.length === 0 ? [] : this.#all(sql, query.join(' OR '))
  }

  #together(work: () => void): void {
    this.#db.exec('BEGIN IMMEDIATE')
    try {
      work()
      this.#db.exec('COMMIT')
    } catch (error) {
      this.#db.exec('ROLLBACK')
      throw error
    }
  }

  #all(sql: string, ...values: (string | number | null)[]): Record<string, unknown>[] {
    if (!this.#db.isOpen) throw new ServiceError('overloaded', 'The corpus is closed.')
    let statement = this.#statements.get(sql)
    if (!statement) {
      statement = this.#db.prepare(sql)
      this.#statements.set(sql, statement)
    }
    return statement.all(...values)
  }
}

function indexed(text: string): string {
  return [...indexTermsOf(text)].join(' ')
}

function found(url: string, title: string, sha256: string, date: string, snippet: string): FoundSource {
  return { url, title, sha256, date, snippet }
}

function openCurrent(path: string): DatabaseSync | undefined {
  makePrivateFile(path)
  let db: DatabaseSync | undefined
  try {
    db = open(path)
    const { user_version } = db.prepare('PRAGMA user_version').get() ?? {}
    if (user_version === VERSION) return db
  } catch {
    // A broken index is treated as missing. The caller then builds a new index from the files.
  }
  db?.close()
  return undefined
}

function openAnew(path: string): DatabaseSync {
  for (const suffix of ['', '-wal', '-shm']) rmSync(path + suffix, { force: true })
  makePrivateFile(path)
  const db = open(path)
  db.exec(TABLES)
  return db
}

/** Opens the database with `synchronous = OFF`, which is faster. A crash of the machine may lose data, which is then indexed again from the files. */
function open(path: string): DatabaseSync {
  const db = new DatabaseSync(path, { timeout: BUSY_TIMEOUT_MS })
  db.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA cache_size = -16000')
  return db
}
