import { percentile } from '../figures/stats.ts'
import { cpuMs, residentMib } from '../machine/usage.ts'
import { Callers, isStreamed, type Shape } from './load.ts'
import type { Target, TargetName } from './targets.ts'

/** A kind of load. */
export interface Cell {
  readonly shape: Shape
  readonly callers: number
  /** Length of the text that each call is about; undefined: there is none, and the call is short. */
  readonly promptKib?: number
}

/** One target under one load in one round. Times in milliseconds; NaN where there is nothing to tell. */
export interface Sample {
  readonly target: TargetName
  readonly cell: Cell
  readonly round: number
  readonly failures: number
  readonly failure: string | undefined
  readonly answersPerSecond: number
  readonly latencyP50: number
  readonly latencyP95: number
  readonly latencyP99: number
  readonly firstTokenP50: number
  readonly firstTokenP99: number
  readonly tokensPerSecond: number
  readonly lagP50: number
  readonly lagP99: number
  readonly lagMax: number
  readonly stalls: number
  /** CPU of the gateway's processes together: of a whole answer in milliseconds, of a token in microseconds. */
  readonly cpu: number
  /** The same of Kafka's broker. */
  readonly brokerCpu: number
  /** CPU of each process of the gateway, as a share of one core. */
  readonly cores: readonly { readonly name: string; readonly cores: number }[]
  /** Resident memory of the gateway's processes together, in MiB, at the end. */
  readonly residentMib: number
}

/** CPU time under which the kernel's clock of 10 ms tells too little. */
const CPU_MS_MIN = 200

/** Puts one load on one target. */
export async function measure(target: Target, cell: Cell, round: number, seconds: number): Promise<Sample> {
  const pids = target.processes.map(({ pid }) => pid)
  const cpuOf = () => [...pids, target.brokerPid ?? 0].map(cpuMs)
  const callers = await Callers.open(target.address, cell.shape, cell.callers, cell.promptKib)
  const before = cpuOf()
  const seen = await callers.run(seconds).finally(() => callers.close())
  const used = cpuOf().map((ms, index) => ms - (before[index] ?? 0))
  const brokerMs = used.pop() ?? 0
  const units = isStreamed(cell.shape) ? seen.lags.length / 1_000 : seen.answers
  const gatewayMs = used.reduce((sum, ms) => sum + ms, 0)
  return {
    target: target.name,
    cell,
    round,
    failures: seen.failures,
    failure: seen.failure,
    answersPerSecond: seen.answers / seen.seconds,
    latencyP50: percentile(seen.latencies, 0.5),
    latencyP95: percentile(seen.latencies, 0.95),
    latencyP99: percentile(seen.latencies, 0.99),
    firstTokenP50: percentile(seen.firstTokens, 0.5),
    firstTokenP99: percentile(seen.firstTokens, 0.99),
    tokensPerSecond: seen.lags.length / seen.seconds,
    lagP50: percentile(seen.lags, 0.5),
    lagP99: percentile(seen.lags, 0.99),
    lagMax: percentile(seen.lags, 1),
    stalls: seen.stalls,
    cpu: gatewayMs < CPU_MS_MIN ? Number.NaN : gatewayMs / units,
    brokerCpu: brokerMs < CPU_MS_MIN ? Number.NaN : brokerMs / units,
    cores: target.processes.map(({ name }, index) => ({ name, cores: (used[index] ?? 0) / seen.seconds / 1_000 })),
    residentMib: pids.reduce((sum, pid) => sum + residentMib(pid), 0),
  }
}
