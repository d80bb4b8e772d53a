/**
 * Command for the large chaos run before a release: `npx node test/chaos/run.ts --jobs 20000 --kills 100 --seed 1`. The exit code is 1 if the run
 * broke a rule of the checker.
 */
import { mkdtemp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { type ChaosOptions, runChaos } from './chaos.ts'
import { whyNoCluster } from './cluster.ts'
import { tableOf } from './figures.ts'

const SECONDS_A_KILL = 9
const SEEDS = 1_000_000

const HELP = `Usage: npx node test/chaos/run.ts [options]

Runs the service as separate processes on a real Kafka and a real Postgres, injects faults, and checks the
observations of all clients and the rows of the store. Histories and logs stay in the printed directory.

  --jobs N        jobs to submit (default 20000)
  --researches N  deep researches among them (default 800)
  --kills N       processes to kill with SIGKILL (default 100)
  --topics N      topics to delete (default 5)
  --seed N        seed of the workload and the faults (default: random)
  --seconds N     time over which submissions and faults are spread (default: ${SECONDS_A_KILL} per kill)
  --dir PATH      empty directory for histories and logs (default: a new temporary directory)
  --help          print this help

Exit code 0: no rule was broken; 1: a rule was broken, and the smallest such job is printed; 2: the run failed to start.
`

const stop = new AbortController()
// On Ctrl-C or SIGTERM, the run is aborted, so that it stops the broker, the database and the service processes that it has started.
for (const name of ['SIGINT', 'SIGTERM'] as const)
  process.once(name, () => stop.abort(new Error(`interrupted by ${name}`)))
// Exits explicitly, because an interrupted run may have work that would keep the process alive.
process.exit(await main())

async function main(): Promise<number> {
  try {
    const options = await readOptions()
    if (options === undefined) {
      process.stdout.write(HELP)
      return 0
    }
    const missing = await whyNoCluster()
    if (missing) throw new Error(missing)
    const { figures, story } = await runChaos(options)
    process.stdout.write(`${tableOf(figures)}\n${story && `\n${story}\n`}`)
    return story ? 1 : 0
  } catch (error) {
    process.stderr.write(`The run failed: ${error instanceof Error ? error.message : error}\n`)
    return 2
  }
}

/** Reads the options of the command line. Returns undefined after --help. */
async function readOptions(): Promise<ChaosOptions | undefined> {
  const { values } = parseArgs({
    options: {
      jobs: { type: 'string', default: '20000' },
      researches: { type: 'string', default: '800' },
      kills: { type: 'string', default: '100' },
      topics: { type: 'string', default: '5' },
      seed: { type: 'string' },
      seconds: { type: 'string' },
      dir: { type: 'string' },
      help: { type: 'boolean', short: 'h' },
    },
  })
  if (values.help) return undefined
  const kills = countOf('kills', values.kills)
  return {
    seed: countOf('seed', values.seed ?? String(Math.floor(Math.random() * SEEDS))),
    jobs: countOf('jobs', values.jobs),
    researches: countOf('researches', values.researches),
    kills,
    topicDeletions: countOf('topics', values.topics),
    durationMs: countOf('seconds', values.seconds ?? String(kills * SECONDS_A_KILL)) * 1_000,
    directory: values.dir ?? (await mkdtemp(join(tmpdir(), 'sluice-history-'))),
    signal: stop.signal,
    onProgress: (line) => void process.stderr.write(`${line}\n`),
  }
}

function countOf(name: string, text: string): number {
  const count = Number(text)
  if (text.trim() === '' || !Number.isSafeInteger(count) || count < 0)
    throw new Error(`--${name} must be a whole number; got ${text}`)
  return count
}
