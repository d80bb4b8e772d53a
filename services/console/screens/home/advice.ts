import { computed } from '@preact/signals'
import { fault, findings, problems } from './state.ts'

/** Something that is wrong now, and what to do about it. */
export interface Advice {
  readonly what: string
  readonly todo: string
  /** Calls fail because of it. */
  readonly isBad: boolean
}

/**
 * What is wrong now, the worst first: for operators what `sluice doctor` finds, in its words; for others what the service says of whether
 * it is ready.
 */
export const advice = computed<readonly Advice[]>(() => {
  if (fault.value) {
    const todo = 'This page asks again by itself; what it shows below is from before.'
    return [{ what: fault.value, todo, isBad: true }]
  }
  const found = findings.value
    ?.filter(({ status, check }) => (status === 'warn' || status === 'fail') && !isToldAlready(check))
    .map(({ message, fix, status }) => ({ what: message, todo: fix ?? '', isBad: status === 'fail' }))
  const told = problems.value.map((what) => ({
    what,
    todo: 'New work is not taken as long as this is so. `npx sluice doctor` checks everything and says what to do.',
    isBad: true,
  }))
  // What is not ready is among the findings in other words, or is over in a moment.
  const all = found?.some(({ isBad }) => isBad) ? found : [...told, ...(found ?? [])]
  return all.toSorted((a, b) => Number(b.isBad) - Number(a.isBad))
})

/** What cannot be reached is found twice: by the fleet, which says what follows, and later by the check of the machine. */
const TOLD_BY: Readonly<Record<string, string>> = { postgres: 'store', kafka: 'broker' }

function isToldAlready(check: string): boolean {
  return findings.value?.some((one) => one.status === 'fail' && one.check === TOLD_BY[check]) ?? false
}
