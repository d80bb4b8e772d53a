import { type Outside, type OutsideCall, startOutside } from '../../support/research/outside.ts'
import { openRandom, type Random } from '../load/random.ts'
import { isSlowTag } from '../load/researches.ts'
import type { History } from './history.ts'
import { hashOf } from './report.ts'

/**
 * Delay of each answer of the model in a slow research ({@link isSlowTag}). A child job may run for only 20 s after the end of its parent, so the
 * checker detects a child that was not cancelled.
 */
const SLOW_MS = 45_000

/**
 * Starts the search engine, the pages and the model that researches call. All of them run in the test process, which no fault hits. Each search,
 * page request and execution of a child job is recorded.
 *
 * The delay of an answer is random, but depends only on the seed and the request. Faults therefore happen during calls.
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

/** Waits for the delay of a call. Returns true if the caller disconnected before the end of the delay. */
async function isLeft(call: OutsideCall, ms: number): Promise<boolean> {
  return await Promise.race([call.aborted.then(() => true), sleep(ms).then(() => false)])
}

/** Returns the delay of an answer of the model. Most answers are quick, some take seconds, and answers for slow tags take {@link SLOW_MS}. */
function paceOf(tag: string, random: Random): number {
  if (isSlowTag(tag)) return SLOW_MS
  return random.chance(0.7) ? random.between(10, 400) : random.between(500, 3_000)
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}
