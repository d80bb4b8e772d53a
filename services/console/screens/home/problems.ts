import { computed } from '@preact/signals'
import { findings, readyProblems, refreshError } from './state.ts'

export interface Problem {
  readonly message: string
  readonly fix: string
  /** An error rather than a warning: calls fail because of the problem. */
  readonly isError: boolean
}

/**
 * Current problems, errors first. Operators see the failed health checks of `sluice doctor`; callers see the problems that `/readyz`
 * reports.
 */
export const problems = computed<readonly Problem[]>(() => {
  if (refreshError.value) {
    const fix = 'This page retries automatically. The data below may be out of date.'
    return [{ message: refreshError.value, fix, isError: true }]
  }
  const found = findings.value
    ?.filter(({ status, check }) => (status === 'warn' || status === 'fail') && !isCoveredByFleet(check))
    .map(({ message, fix, status }) => ({ message, fix: fix ?? '', isError: status === 'fail' }))
  const notReady = readyProblems.value.map((message) => ({
    message,
    fix: 'New requests are rejected until this is resolved. Run `npx sluice doctor` for a full check with remedies.',
    isError: true,
  }))
  // Failed health checks replace the problems of /readyz, because they contain the remedy.
  const all = found?.some(({ isError }) => isError) ? found : [...notReady, ...(found ?? [])]
  return all.toSorted((a, b) => Number(b.isError) - Number(a.isError))
})

/** Machine check → fleet check of the same outage. The fleet check also names the consequence, so the machine check is hidden. */
const FLEET_CHECKS: Readonly<Record<string, string>> = { postgres: 'store', kafka: 'broker' }

function isCoveredByFleet(check: string): boolean {
  return findings.value?.some((one) => one.status === 'fail' && one.check === FLEET_CHECKS[check]) ?? false
}
