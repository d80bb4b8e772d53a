import { type Outside, type OutsideCall, startOutside } from '../../support/research/outside.ts'
import { openRandom, type Random } from '../load/random.ts'
import { isSlowTag } from '../load/researches.ts'
import type { History } from './history.ts'
import { hashOf } from './report.ts'

/** Of one answer; longer than a child may go on that nobody cancelled with its parent. */
const SLOW_MS = 45_000

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
    if (call.execution !== undefined) return await execute(call, call.execution, random, history)
    const phase = (await isLeft(call, random.between(30, 300))) ? 'aborted' : 'answered'
    history.add('outside', { type: 'outside', phase, tag: call.tag, what: call.what, wall_ms: Date.now() })
  }
  return outside
}

async function execute(call: OutsideCall, execution: string, random: Random, history: History): Promise<void> {
  const [job_id = '', attempt] = execution.split(':')
  const say = (phase: 'start' | 'done' | 'aborted') =>
    history.add('outside', { type: 'run', phase, job_id, attempt: Number(attempt) })
  say('start')
  say((await isLeft(call, paceOf(call.tag, random))) ? 'aborted' : 'done')
}

/** Takes a time for a call. True: its caller left before that was over. */
async function isLeft(call: OutsideCall, ms: number): Promise<boolean> {
  return await Promise.race([call.aborted.then(() => true), sleep(ms).then(() => false)])
}

/** Most answers are quick, some take seconds, and those of slow tags long. */
function paceOf(tag: string, random: Random): number {
  if (isSlowTag(tag)) return SLOW_MS
  return random.chance(0.7) ? random.between(10, 400) : random.between(500, 3_000)
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}
