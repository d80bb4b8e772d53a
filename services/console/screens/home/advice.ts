import { computed } from '@preact/signals'
import { fault, findings, problems } from './state.ts'

/** A current problem and its remedy. */
export interface Advice {
  readonly what: string
  readonly todo: string
  /** An error rather than a warning: calls fail because of the problem. */
  readonly isBad: boolean
}

/**
 * Current problems, errors first. Operators see the failed health checks of `sluice doctor`; callers see the problems that `/readyz`
 * reports.
 */
export const advice = computed<readonly Advice[]>(() => {
  if (fault.value) {
    const todo = 'This page retries automatically. The data below may be out of date.'
    return [{ what: fault.value, todo, isBad: true }]
  }
  const found = findings.value
    ?.filter(({ status, check }) => (status === 'warn' || status === 'fail') && !isToldAlready(check))
    .map(({ message, fix, status }) => ({ what: message, todo: fix ?? '', isBad: status === 'fail' }))
  const told = problems.value.map((what) => ({
    what,
    todo: 'New requests are rejected until this is resolved. Run `npx sluice doctor` for a full check with remedies.',
    isBad: true,
  }))
  // A failed health check covers the problems of /readyz with more detail.
  const all = found?.some(({ isBad }) => isBad) ? found : [...told, ...(found ?? [])]
  return all.toSorted((a, b) => Number(b.isBad) - Number(a.isBad))
})

/** Machine check → fleet check of the same outage. The fleet check also names the consequence, so the machine check is hidden. */
const TOLD_BY: Readonly<Record<string, string>> = { postgres: 'store', kafka: 'broker' }

function isToldAlready(check: string): boolean {
  return findings.value?.some((one) => one.status === 'fail' && one.check === TOLD_BY[check]) ?? false
}
