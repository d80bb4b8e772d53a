import { type Outside, type OutsideCall, startOutside } from '../../support/research/outside.ts'
import { openRandom, type Random } from '../load/random.ts'
import type { History } from './history.ts'
import { hashOf } from './report.ts'

/**
 * Starts what researches ask outside, and writes down each search and each page, and each execution of a child: as the witness
 * does, outside the processes that faults happen to.
 *
 * It takes its time, by the seed and by what is asked for, so that faults meet calls that are under way.
 */
export async function startWatchedOutside(history: History, seed: number): Promise<Outside> {
  const outside = await startOutside()
  outside.onCall = async (call) => {
    const random = openRandom(seed ^ Number.parseInt(hashOf(`${call.tag} ${call.what}`).slice(0, 8), 16))
    if (call.execution === undefined) {
      history.add('outside', { type: 'outside', tag: call.tag, what: call.what })
      await sleep(random.between(0, 300))
    } else await execute(call, call.execution, random, history)
  }
  return outside
}

async function execute(call: OutsideCall, execution: string, random: Random, history: History): Promise<void> {
  const [job_id = '', attempt] = execution.split(':')
  const say = (phase: 'start' | 'done' | 'aborted') =>
    history.add('outside', { type: 'run', phase, job_id, attempt: Number(attempt) })
  say('start')
  const isAborted = await Promise.race([call.aborted.then(() => true), sleep(paceOf(random)).then(() => false)])
  say(isAborted ? 'aborted' : 'done')
}

/** Most answers are quick, some take seconds. */
function paceOf(random: Random): number {
  return random.chance(0.7) ? random.between(10, 400) : random.between(500, 3_000)
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}
