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

/** A second API key that every {@link SingleProcess} accepts, in addition to the test key. */
export const OTHER_KEY = 'sk-other-0123456789'

/** The service in one child process that runs all roles, with embedded queue and store. Dispose it. */
export interface SingleProcess extends AsyncDisposable {
  readonly url: string
  readonly modelsFile: string
  readonly isAlive: boolean
  /** Text that the process has printed so far: log lines and messages. */
  readonly output: string
  rssMib(): number
  /** Returns the longest block of the event loop since the previous call of this method, in milliseconds of CPU time. */
  longestHoldMs(): Promise<number>
  signal(name: NodeJS.Signals): void
}

export interface SingleProcessOptions {
  readonly models?: readonly object[]
  readonly settings?: Readonly<Record<string, string>>
  /** Heap limit of Node in MiB (`--max-old-space-size`). Default: that of Node. */
  readonly heapMib?: number
}

/** Starts the service and waits until it listens. */
export async function startSingleProcess(options: SingleProcessOptions = {}): Promise<SingleProcess> {
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
    modelsFile,
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
    signal: (name) => void child.kill(name),
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
