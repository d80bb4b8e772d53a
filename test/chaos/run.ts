/** The chaos run of a release: `npx node test/chaos/run.ts --jobs 20000 --kills 100 --seed 1`. Exit code 1: a rule was broken. */
import { mkdtemp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { runChaos } from './chaos.ts'
import { whyNoCluster } from './cluster.ts'
import { tableOf } from './figures.ts'

const HELP = `Usage: node test/chaos/run.ts [options]

Runs the service as separate processes on a real Kafka and a real Postgres, kills and stops them, and checks what clients
and the store saw. Histories and logs stay in the directory it prints.

  --jobs N      jobs to submit (default 20000)
  --kills N     processes to kill with -9 (default 100)
  --seed N      of the workload and the faults (default: a random one)
  --seconds N   submissions and faults are spread over this (default: 9 for each kill)
  --dir PATH    where histories and logs go (default: a new one in the temporary directory)
`

const { values } = parseArgs({
  options: {
    jobs: { type: 'string', default: '20000' },
    kills: { type: 'string', default: '100' },
    seed: { type: 'string' },
    seconds: { type: 'string' },
    dir: { type: 'string' },
    help: { type: 'boolean', short: 'h' },
  },
})

if (values.help) {
  process.stdout.write(HELP)
  process.exit(0)
}
const missing = await whyNoCluster()
if (missing) {
  process.stderr.write(`Cannot run: ${missing}\n`)
  process.exit(2)
}
const kills = Number(values.kills)
const stop = new AbortController()
// Without this an interrupted run would leave a broker, a database and seven processes behind.
for (const name of ['SIGINT', 'SIGTERM'] as const) process.once(name, () => stop.abort(new Error(`ended by ${name}`)))
const { figures, story } = await runChaos({
  seed: Number(values.seed ?? Math.floor(Math.random() * 1_000_000)),
  jobs: Number(values.jobs),
  kills,
  durationMs: Number(values.seconds ?? kills * 9) * 1_000,
  directory: values.dir ?? (await mkdtemp(join(tmpdir(), 'sluice-history-'))),
  signal: stop.signal,
  onProgress: (line) => void process.stderr.write(`${line}\n`),
}).catch((error: unknown) => {
  process.stderr.write(`The run ended early: ${error instanceof Error ? (error.stack ?? error.message) : error}\n`)
  process.exit(2)
})
process.stdout.write(`${tableOf(figures)}\n`)
if (story) process.stdout.write(`\n${story}\n`)
process.exit(story ? 1 : 0)
