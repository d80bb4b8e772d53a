import { createHash, randomBytes, timingSafeEqual } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { z } from 'zod'
import type { Log } from '#shared/log.ts'

const StoredKey = z.strictObject({
  id: z.string(),
  hash: z.string().length(64).describe('SHA-256 of the secret, hex'),
  hint: z.string().describe('The secret as it may be shown: sk-...abcd'),
  created_at: z.int(),
  revoked: z.boolean().default(false),
  endpoints: z.array(z.string()).optional().describe('Paths the key may call; absent: all'),
  models: z.array(z.string()).optional().describe('Models the key may use; absent: all'),
})
const KeysFile = z.strictObject({ keys: z.array(StoredKey) })

/** An API key, without its secret. */
export type ApiKey = z.infer<typeof StoredKey>

/** How often a changed file is noticed: a revoked key stops within this time. */
const RELOAD_MS = 1_000

/**
 * The API keys: `keys.json` in the data directory, and SLUICE_API_KEY. Only hashes are kept; a secret has enough entropy
 * that a plain SHA-256 of it cannot be searched.
 */
export class ApiKeys {
  /** The secret made on the first run, to be shown once. */
  readonly created: string | undefined
  readonly #path: string
  readonly #fixed: ApiKey | undefined
  readonly #log: Log
  readonly #watch: NodeJS.Timeout
  #byHash = new Map<string, ApiKey>()
  /** What the file looked like when it was last read. */
  #seen = ''

  /**
   * Reads the keys; makes and keeps a random one when there is none at all.
   *
   * @param fixedSecret SLUICE_API_KEY: always valid, never written to disk.
   */
  constructor(dataDir: string, fixedSecret: string | undefined, log: Log) {
    this.#path = join(dataDir, 'keys.json')
    this.#log = log
    this.#fixed = fixedSecret === undefined ? undefined : keyOf('key_env', fixedSecret)
    if (!this.#fixed && !existsSync(this.#path)) this.created = this.#createFirst()
    this.#load()
    this.#watch = setInterval(() => this.#reload(), RELOAD_MS).unref()
  }

  /** The key a secret belongs to; undefined when there is none or it was revoked. Constant time in the secret. */
  find(secret: string): ApiKey | undefined {
    const hash = sha256(secret)
    const key = this.#byHash.get(hash)
    if (!key || !timingSafeEqual(Buffer.from(key.hash), Buffer.from(hash))) return undefined
    return key.revoked ? undefined : key
  }

  /** Stops to watch the file. */
  close(): void {
    clearInterval(this.#watch)
  }

  #createFirst(): string {
    const secret = `sk-${randomBytes(30).toString('base64url')}`
    mkdirSync(dirname(this.#path), { recursive: true })
    const content = { keys: [keyOf('key_first', secret)] }
    writeFileSync(this.#path, `${JSON.stringify(content, null, 2)}\n`, { mode: 0o600 })
    return secret
  }

  /** @throws When the file is there and cannot be understood. */
  #load(): void {
    // Looked at before it is read: a change in between is seen next time. fs.watchFile misses what comes before its first look.
    this.#seen = this.#look()
    const keys = this.#fixed ? [this.#fixed] : []
    if (this.#seen) keys.push(...KeysFile.parse(JSON.parse(readFileSync(this.#path, 'utf8'))).keys)
    this.#byHash = new Map(keys.map((key) => [key.hash, key]))
  }

  #look(): string {
    const stat = statSync(this.#path, { throwIfNoEntry: false })
    return stat ? `${stat.ino} ${stat.size} ${stat.mtimeMs} ${stat.ctimeMs}` : ''
  }

  #reload(): void {
    try {
      if (this.#look() !== this.#seen) this.#load()
    } catch (error) {
      // Half-written or broken: the keys known so far stay as they are, rather than none.
      this.#log.error({ err: error }, 'keys.json not understood; keeping the old keys')
    }
  }
}

function keyOf(id: string, secret: string): ApiKey {
  const created_at = Math.floor(Date.now() / 1_000)
  return { id, hash: sha256(secret), hint: `sk-...${secret.slice(-4)}`, created_at, revoked: false }
}

function sha256(secret: string): string {
  return createHash('sha256').update(secret).digest('hex')
}
