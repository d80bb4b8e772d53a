import { checkHistory, describeSmallest, type Verdict } from './check/check.ts'
import { countUnfinished, readFinalState } from './check/final-state.ts'
import { History, readHistory } from './check/history.ts'
import { startWatchedOutside } from './check/watched-outside.ts'
import { startWitness } from './check/witness.ts'
import { type Cluster, FLEET, startCluster } from './cluster.ts'
import { type FaultKind, planFaults, runFaults, withOthers } from './faults.ts'
import { type Figures, figuresOf } from './figures.ts'
import type { Clients } from './load/client.ts'
import { runLoad } from './load/load.ts'
import { planResearch, researchQuietly } from './load/researches.ts'
import { type PlannedJob, planJob } from './load/workload.ts'

/** Maximum time from the last fault and the last submission until every job has ended. */
const QUIET_MS = 180_000
/** Maximum time from the end of all jobs until each client has received the end of its job. */
const WATCH_MS = 60_000
const PROGRESS_MS = 5_000

export interface ChaosOptions {
  readonly seed: number
  readonly jobs: number
  /** Number of composed jobs (researches), which are submitted in addition to the other jobs. */
  readonly researches: number
  readonly kills: number
  /** Time over which submissions and faults are spread evenly. */
  readonly durationMs: number
  /** Number of kills of a PgBouncer between the service and the database. Default: the service connects to the database without a PgBouncer. */
  readonly poolerKills?: number
  /** Number of topics that are deleted while jobs run. Default: none. */
  readonly topicDeletions?: number
  /** Empty directory to which the run writes its history and the logs of the processes. */
  readonly directory: string
  /** If aborted, then every process is stopped, its data is deleted, and {@link runChaos} rejects. */
  readonly signal?: AbortSignal
  readonly onProgress?: (line: string) => void
}

export interface ChaosResult {
  readonly verdict: Verdict
  readonly figures: Figures
  /** History of one job that broke a rule: the one with the fewest entries, for a short report. Empty if no rule was broken. */
  readonly story: string
}

/** Starts a cluster, applies load and faults, waits until all jobs have ended, and checks the observations of all clients. */
export async function runChaos(options: ChaosOptions): Promise<ChaosResult> {
  const history = await History.open(options.directory, options.seed)
  await perform(options, history)
  await history.close()
  const records = await readHistory(options.directory)
  const verdict = checkHistory(records)
  return { verdict, figures: figuresOf(verdict, records), story: describeSmallest(verdict) }
}

async function perform(options: ChaosOptions, history: History): Promise<void> {
  const { seed, kills, durationMs, onProgress = () => undefined } = options
  await using witness = await startWitness(history)
  await using outside = await startWatchedOutside(history, seed)
  const hasPooler = options.poolerKills !== undefined
  await using cluster = await startCluster({ history, witness: witness.url, outside: outside.url, hasPooler })
  onProgress(`cluster ready after ${seconds(history)} s; histories in ${options.directory}`)
  const over = new AbortController()
  const clients: Clients = { history, ingresses: cluster.ingresses, signal: over.signal }
  const done = { accepted: 0, faults: 0 }
  const ticker = setInterval(() => {
    const all = options.jobs + options.researches
    onProgress(`${seconds(history)} s: ${done.accepted}/${all} jobs accepted, ${done.faults} faults`)
  }, PROGRESS_MS)
  try {
    await Promise.race([work(), aborted(options.signal)])
  } finally {
    clearInterval(ticker)
    over.abort()
  }

  async function work(): Promise<void> {
    const plan = withOthers(planFaults(seed, kills, durationMs, FLEET), options, durationMs)
    const onFault = (kind: FaultKind, target: string) => {
      done.faults += 1
      onProgress(`${seconds(history)} s: ${kind} ${target}`)
    }
    const load = { jobs: await planLoad(options, clients), durationMs, onAccepted: () => void done.accepted++ }
    const [{ watched }] = await Promise.all([runLoad(clients, load), runFaults(plan, cluster, history, onFault)])
    onProgress(`${seconds(history)} s: all submitted and all faults over`)
    await becomeQuiet(cluster, history, onProgress)
    await Promise.race([watched, new Promise((resolve) => setTimeout(resolve, WATCH_MS).unref())])
    for await (const entry of readFinalState(cluster.database)) history.add('store', entry)
  }
}

/** Plans all jobs of a run, in order of submission. The researches are spread evenly among the other jobs. */
async function planLoad({ seed, jobs, researches }: ChaosOptions, clients: Clients): Promise<PlannedJob[]> {
  const plain = Array.from({ length: jobs }, (_, number) => planJob(seed, number))
  if (researches === 0) return plain
  const quiet = await researchQuietly(clients)
  for (let number = researches; number > 0; number--) {
    plain.splice(Math.floor(((number - 1) * jobs) / researches), 0, planResearch(seed, number, quiet))
  }
  return plain
}

/** Returns a promise that never resolves. If the signal is aborted, then the promise rejects with the reason. */
function aborted(signal: AbortSignal | undefined): Promise<never> {
  return new Promise((_resolve, reject) => {
    signal?.addEventListener('abort', () => reject(signal.reason), { once: true })
  })
}

/** Waits until every job has ended, or QUIET_MS has passed. Unfinished jobs are reported later by the checker. */
async function becomeQuiet(cluster: Cluster, history: History, onProgress: (line: string) => void): Promise<void> {
  await cluster.ready()
  const deadline = history.nowMs + QUIET_MS
  for (;;) {
    const count = await countUnfinished(cluster.database)
    if (count === 0 || history.nowMs > deadline) {
      onProgress(`${seconds(history)} s: ${count ?? 'unknown'} jobs unfinished`)
      return
    }
    await new Promise((resolve) => setTimeout(resolve, 1_000))
  }
}

function seconds(history: History): number {
  return Math.round(history.nowMs / 1_000)
}
