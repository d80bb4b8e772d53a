import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { INSIDE_PYTHON, INSIDE_VARIABLES, prepareRoot } from '#shared/sandbox/root/root.ts'
import { repeat } from '../figures/repeat.ts'
import { percentile } from '../figures/stats.ts'
import { endedChildrenCpuMs } from '../machine/usage.ts'
import {
  DATA_DIR,
  type Latency,
  type SandboxBenchOptions,
  type SandboxFigures,
  type SandboxResults,
} from './figures.ts'
import type { SandboxMeter } from './meter.ts'

const run = promisify(execFile)
const TIMEOUT_MS = 60_000
/** The image that the docker sandbox has made. */
const IMAGES = ['image', 'ls', 'sluice-sandbox', '--format', '{{.Repository}}:{{.Tag}}']

const PRINT = 'print(1)'
/** Without a sandbox nobody takes the figure that is shown: it is saved. */
const PLOT =
  "import matplotlib; matplotlib.use('Agg'); import matplotlib.pyplot as plt; plt.plot([1, 4, 9]); plt.title('squares'); plt.savefig('/tmp/bench.png')"

/** A program that is started anew for each run: what sandboxes are compared with. */
interface Command {
  readonly name: string
  readonly file: string
  readonly args: (code: string) => string[]
  /** Default: this process's own. */
  readonly env?: NodeJS.ProcessEnv
  /** CPU that was used for it so far, in milliseconds. */
  readonly usedMs: () => number
  /** Waits until what it left to others is done. */
  readonly untilRest: () => Promise<void>
}

/** Measures processes that are started for each run and know no sandbox of ours. */
export async function measureProcesses(meter: SandboxMeter, options: SandboxBenchOptions): Promise<SandboxResults> {
  const figures: SandboxFigures[] = []
  const skipped: string[] = []
  for (const find of [findPython, () => findDockerRun(meter, options.signal)]) {
    options.signal.throwIfAborted()
    try {
      figures.push(await measureCommand(await find(), options))
    } catch (error) {
      options.signal.throwIfAborted()
      skipped.push(reasonOf(error))
    }
  }
  return { figures, skipped }
}

/** The interpreter and the libraries that zygote has inside, as a plain process. */
async function findPython(): Promise<Command> {
  const { directory } = await prepareRoot(join(DATA_DIR, 'sandbox'))
  const isPath = (value: string) => value.startsWith('/opt/')
  const outside = Object.entries(INSIDE_VARIABLES).map(([name, value]) => [
    name,
    isPath(value) ? directory + value : value,
  ])
  const env: NodeJS.ProcessEnv = Object.fromEntries(outside)
  const args = (code: string) => ['-s', '-c', code]
  const usedMs = () => endedChildrenCpuMs(process.pid)
  const file = directory + INSIDE_PYTHON
  return { name: 'bare python3, no sandbox', file, args, env, usedMs, untilRest: async () => {} }
}

async function findDockerRun(meter: SandboxMeter, signal: AbortSignal): Promise<Command> {
  const { stdout } = await run('docker', IMAGES, { timeout: TIMEOUT_MS }).catch((error: unknown) => {
    throw new Error(`docker run: ${reasonOf(error)}`)
  })
  const [image] = stdout.split('\n')
  if (!image) throw new Error('docker run: there is no image for it')
  const variables = Object.entries(INSIDE_VARIABLES).flatMap(([name, value]) => ['-e', `${name}=${value}`])
  const options = ['--rm', '--network=none', '--tmpfs=/tmp', ...variables, `--entrypoint=${INSIDE_PYTHON}`]
  const args = (code: string) => ['run', ...options, image, '-s', '-c', code]
  const usedMs = () => meter.cpuMs('docker')
  const untilRest = () => meter.untilRest('docker', signal)
  return { name: '`docker run`, the same image', file: 'docker', args, usedMs, untilRest }
}

async function measureCommand(command: Command, options: SandboxBenchOptions): Promise<SandboxFigures> {
  const print = await timesOf(command, PRINT, options)
  const plot = await timesOf(command, PLOT, options)
  const none = { perSecond: Number.NaN, idleMib: Number.NaN }
  return { name: command.name, programs: { print, plot }, ...none }
}

async function timesOf(command: Command, code: string, { runs, signal }: SandboxBenchOptions): Promise<Latency> {
  const { file, args, env } = command
  const work = async () => void (await run(file, args(code), { timeout: TIMEOUT_MS, env }))
  await work()
  await command.untilRest()
  const before = command.usedMs()
  const times = await repeat(work, runs, signal, command.untilRest)
  await command.untilRest()
  return { p50: percentile(times, 0.5), p95: percentile(times, 0.95), cpu: (command.usedMs() - before) / times.length }
}

/** The first line of what went wrong. */
function reasonOf(error: unknown): string {
  const { stderr, message } = error as Error & { stderr?: string }
  return (stderr?.trim() || message).split('\n')[0] ?? message
}
