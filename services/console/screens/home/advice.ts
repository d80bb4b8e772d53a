import { computed } from '@preact/signals'
import { isAway, pools, problems } from './state.ts'

/** Something that is wrong now, and what to do about it. */
export interface Advice {
  readonly what: string
  readonly todo: string
  /** Calls fail because of it. */
  readonly isBad: boolean
}

/** Seconds for which a job may wait before that is worth telling. */
const LONG_WAIT = 60
/** Failures of the last minutes that are worth telling, as a share. */
const MANY_FAILURES = 0.1

/** What is wrong now, the worst first. */
export const advice = computed<readonly Advice[]>(() => {
  if (isAway.value) {
    return [
      {
        what: 'The service does not answer.',
        todo: 'It may be restarting. This page asks again by itself.',
        isBad: true,
      },
    ]
  }
  const all: Advice[] = problems.value.map((what) => ({
    what,
    todo: 'New work is not taken as long as this is so. `npx sluice doctor` checks everything and says what to do.',
    isBad: true,
  }))
  for (const { id, slots, isPaused, waiting, running, oldestSeconds = 0, ended, failed } of pools.value) {
    if (isPaused)
      all.push({
        what: `The pool ${id} is paused.`,
        todo: `Start its jobs again: npx sluice resume ${id}`,
        isBad: true,
      })
    else if (slots === 0)
      all.push({
        what: `No worker works for the pool ${id}.`,
        todo: `Start one: node services/main.js ${id}`,
        isBad: true,
      })
    else if (oldestSeconds > LONG_WAIT && running >= slots) {
      const todo = `All ${slots} slots are taken and ${waiting} wait. Start more workers, or raise its slots.`
      all.push({ what: `Jobs of the pool ${id} wait for long.`, todo, isBad: false })
    }
    if (ended >= 5 && failed / ended > MANY_FAILURES) {
      const todo = 'The list of failed jobs says why; the log of the workers has more.'
      all.push({
        what: `${failed} of ${ended} attempts of the pool ${id} failed in the last minutes.`,
        todo,
        isBad: false,
      })
    }
  }
  return all.toSorted((a, b) => Number(b.isBad) - Number(a.isBad))
})
