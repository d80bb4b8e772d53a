import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { stringify } from 'yaml'
import { ECHO_MODEL, TEST_KEY, until } from '../stack.ts'
import { ENVIRONMENT } from './environment.ts'

/** A second key of every {@link WholeProcess}. */
export const OTHER_KEY = 'sk-other-0123456789'

/** Every role in one process of its own, with queue and store inside. Dispose it. */
export interface WholeProcess extends AsyncDisposable {
  /** `http://127.0.0.1:PORT` */
  readonly url: string
  readonly isAlive: boolean
  /** Everything it wrote so far: its log, and what it says to people. */
  readonly output: string
  /** Resident memory, in MiB. */
  rssMib(): number
  /** The longest time for which a round of its event loop computed since the last call, in milliseconds. */
  longestHoldMs(): Promise<number>
}

/** What a test may change of it. */
export interface WholeOptions {
  readonly models?: readonly object[]
  readonly settings?: Readonly<Record<string, string>>
  /** Limit of its heap. */
  readonly heapMib?: number
}

/** Starts it, and waits until it listens. */
export async function startWhole(options: WholeOptions = {}): Promise<WholeProcess> {
  const dataDir = await mkdtemp(join(tmpdir(), 'sluice-whole-'))
  const modelsFile = join(dataDir, 'models.yaml')
  await writeFile(modelsFile, stringify({ models: options.models ?? [ECHO_MODEL] }))
  await writeFile(join(dataDir, 'keys.json'), JSON.stringify({ keys: [storedKey(OTHER_KEY)] }), { mode: 0o600 })
  const flags = ['--import', new URL('loop-probe.ts', import.meta.url).href]
  if (options.heapMib !== undefined) flags.push(`--max-old-space-size=${options.heapMib}`)
  const env = {
    ...ENVIRONMENT,
    PORT: '0',
    DATA_DIR: dataDir,
    MODELS_FILE: modelsFile,
    SLUICE_API_KEY: TEST_KEY,
    LOG_LEVEL: 'warn',
    SANDBOX: 'off',
    ...options.settings,
  }
  const child = spawn(process.execPath, [...flags, 'services/main.js'], {
    env,
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  })
  let [output, stderr] = ['', '']
  child.stdout?.on('data', (chunk) => {
    output += chunk
  })
  child.stderr?.on('data', (chunk) => {
    stderr += chunk
  })
  const isAlive = () => child.exitCode === null && child.signalCode === null
  const urlOf = () => /http:\/\/[\d.:]+/.exec(stderr)?.[0]
  await until(() => urlOf() ?? !isAlive(), { withinMs: 90_000 })
  if (!isAlive()) throw new Error(`the service did not start: ${stderr}`)
  return {
    url: urlOf() ?? '',
    get isAlive() {
      return isAlive()
    },
    get output() {
      return output + stderr
    },
    rssMib: () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))?.[1]) / 1024,
    async longestHoldMs() {
      child.send('longest hold?')
      const [ms] = await once(child, 'message')
      return ms as number
    },
    async [Symbol.asyncDispose]() {
      child.kill('SIGKILL')
      if (isAlive()) await once(child, 'exit')
      await rm(dataDir, { recursive: true, force: true })
    },
  }
}

function storedKey(secret: string): object {
  const hash = createHash('sha256').update(secret).digest('hex')
  return { id: 'key_other', hash, hint: 'sk-...', created_at: 1_790_000_000 }
}
