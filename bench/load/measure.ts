import { cpuMs, residentMib } from '../machine/usage.ts'
import { percentile, sumOf } from '../results/samples.ts'
import { type Load, runLoad } from './callers.ts'
import type { Address } from './connection.ts'

/**
 * Minimum CPU time of a measurement, in ms. The kernel counts CPU time in units of 10 ms, so the rounding error of a shorter CPU time would
 * be too large.
 */
const CPU_MS_MIN = 200

/** A service under load. The CPU time of the broker is reported separately from that of the other processes. */
export interface Target {
  readonly name: string
  readonly address: Address
  readonly pids: readonly number[]
  readonly brokerPid: number | undefined
}

/**
 * Measures a load. The CPU time of whole answers is in milliseconds per answer, and that of streams in microseconds per token. @throws Error if a
 * call failed
 */
export async function measureLoad({ name, address, pids, brokerPid }: Target, load: Load, seconds: number) {
  const measured = [...pids, brokerPid ?? 0]
  const before = measured.map(cpuMs)
  const results = await runLoad(address, load, seconds)
  const used = measured.map((pid, index) => cpuMs(pid) - (before[index] ?? 0))
  const brokerMs = used.pop() ?? 0
  const { answers, lags, latencies, firstTokens, stalls, failures, failure } = results
  if (failures > 0) throw new Error(`${failures} calls through ${name} failed: ${failure}`)
  const units = load.shape === 'whole' ? answers : lags.length / 1_000
  const perUnit = (ms: number) => (ms < CPU_MS_MIN ? Number.NaN : ms / units)
  return {
    perSecond: (load.shape === 'whole' ? answers : lags.length) / results.seconds,
    p50: percentile(latencies, 0.5),
    p99: percentile(latencies, 0.99),
    firstTokenP50: percentile(firstTokens, 0.5),
    firstTokenP99: percentile(firstTokens, 0.99),
    lagP50: percentile(lags, 0.5),
    lagP99: percentile(lags, 0.99),
    stalls,
    cpu: perUnit(sumOf(used)),
    brokerCpu: perUnit(brokerMs),
    mib: sumOf(pids.map(residentMib)),
  }
}
