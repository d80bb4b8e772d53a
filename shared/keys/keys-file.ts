import {
  appendFileSync,
  closeSync,
  fstatSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { z } from 'zod'
import { giveToOwnerOf, makeDirectory, makePrivateFile } from '#shared/config/directory.ts'
import { newId } from '#shared/lib/id.ts'
import { type AuditAction, AuditEntry } from './audit.ts'
import { KEYS_MAX, PROJECTS_MAX } from './keys.ts'
import { StoredKey, StoredProject } from './lenient.ts'
import { WEBHOOK_SECRETS_MAX, WebhookSecret } from './webhook-secrets.ts'

/** Content of `keys.json`. The object is loose, so that unknown fields survive a rewrite, because newer versions may have written them. */
const StoredKeys = z.looseObject({
  keys: z.array(StoredKey).max(KEYS_MAX),
  projects: z.array(StoredProject).max(PROJECTS_MAX).optional(),
  webhook_secrets: z
    .array(WebhookSecret.loose())
    .max(KEYS_MAX * WEBHOOK_SECRETS_MAX)
    .optional(),
})
export type StoredKeys = z.infer<typeof StoredKeys>

const AUDIT_TAIL_BYTES = 1024 * 1024

/**
 * The file `keys.json`, and next to it `audit.jsonl` with one line per change, for the processes of one machine.
 *
 * A reader gets the content before or after a change, never a part of it. A lock admits one writer at a time.
 */
export class KeysFile {
  readonly path: string
  readonly #auditPath: string
  readonly #lock: (path: string) => () => void

  /**
   * @param directory Created with the first change
   * @param lock Waits until this process has the lock of a path, and returns the function that releases the lock
   */
  constructor(directory: string, lock: (path: string) => () => void) {
    this.#lock = lock
    this.path = join(directory, 'keys.json')
    this.#auditPath = join(directory, 'audit.jsonl')
  }

  /** Returns a fingerprint of the file, which differs after each change. Empty if the file does not exist. */
  fingerprint(): string {
    const stat = statSync(this.path, { throwIfNoEntry: false })
    return stat ? `${stat.ino} ${stat.size} ${stat.mtimeMs} ${stat.ctimeMs}` : ''
  }

  read(): StoredKeys {
    try {
      return StoredKeys.parse(JSON.parse(readFileSync(this.path, 'utf8')))
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return { keys: [] }
      const why = error instanceof z.ZodError ? z.prettifyError(error) : String(error)
      throw new Error(`${this.path} cannot be used: ${why}`, { cause: error })
    }
  }

  /**
   * Replaces the content with the result of `decide`, while the lock is held. The audit line is written first. A crash can therefore leave a line
   * without its change, but never a change without its line.
   *
   * @returns False if `decide` returned undefined
   */
  change(by: string, decide: (kept: StoredKeys) => { kept: StoredKeys; action: AuditAction } | undefined): boolean {
    makeDirectory(dirname(this.path))
    const unlock = this.#lock(join(dirname(this.path), 'keys.lock'))
    try {
      const decided = decide(this.read())
      if (!decided) return false
      this.#note(by, decided.action)
      replaceFile(this.path, `${JSON.stringify(decided.kept, null, 2)}\n`)
      return true
    } finally {
      unlock()
    }
  }

  audit(limit: number): AuditEntry[] {
    const lines = tailOf(this.#auditPath).split('\n').filter(Boolean).toReversed()
    return lines.flatMap((line) => entryOf(line) ?? []).slice(0, limit)
  }

  #note(by: string, { action, subject, project, change }: AuditAction): void {
    const at = Math.floor(Date.now() / 1_000)
    const entry: AuditEntry = { at, author: by, action, subject, project, change }
    makePrivateFile(this.#auditPath)
    appendFileSync(this.#auditPath, `${JSON.stringify(entry)}\n`, { flush: true })
  }
}

function replaceFile(path: string, text: string): void {
  const draft = `${path}.${newId('', 8)}`
  try {
    writeFileSync(draft, text, { mode: 0o600, flush: true })
    giveToOwnerOf(statSync(path, { throwIfNoEntry: false }) ? path : dirname(path), draft)
    renameSync(draft, path)
  } catch (error) {
    rmSync(draft, { force: true })
    throw error
  }
}

function tailOf(path: string): string {
  if (!statSync(path, { throwIfNoEntry: false })) return ''
  const file = openSync(path, 'r')
  try {
    const { size } = fstatSync(file)
    const tail = Buffer.alloc(Math.min(size, AUDIT_TAIL_BYTES))
    readSync(file, tail, 0, tail.length, size - tail.length)
    const text = tail.toString('utf8')
    return size > tail.length ? text.slice(text.indexOf('\n') + 1) : text
  } finally {
    closeSync(file)
  }
}

function entryOf(line: string): AuditEntry | undefined {
  try {
    return AuditEntry.parse(JSON.parse(line))
  } catch {
    // If the disk was full when a line was written, then the line is truncated. Such a line is skipped.
    return undefined
  }
}
