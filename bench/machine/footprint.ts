import { setTimeout as sleep } from 'node:timers/promises'
import type { Processes } from './processes.ts'
import { residentMib } from './usage.ts'

/** What `npm start` costs before anybody calls. */
export interface Footprint {
  /** From the start of the process until its first answer. */
  readonly readySeconds: number
  readonly residentMib: number
}

/** Quiet time after which memory is read: what the start needed only once is gone by then, as far as it goes by itself. */
const SETTLE_MS = 3_000

/** Starts the service as it is delivered (every role, embedded, the models of models.yaml) and looks. */
export async function measureFootprint(processes: Processes): Promise<Footprint> {
  const modelsFile = new URL('../../models.yaml', import.meta.url).pathname
  const running = await processes.node({
    name: 'idle',
    script: '../services/main.js',
    args: [],
    env: { PORT: '0', DATA_DIR: `${processes.dir}/idle`, MODELS_FILE: modelsFile, SANDBOX: 'auto' },
    addressOn: 'stderr',
  })
  await sleep(SETTLE_MS)
  const footprint = { readySeconds: running.startSeconds, residentMib: residentMib(running.pid) }
  await processes.stop(running.pid)
  return footprint
}
